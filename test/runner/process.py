# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Running test programs: a time limit, a process group of their own, nothing left behind."""

import os
import re
import signal
import subprocess
import tempfile


def run(command, timeout, environment=None, cwd=None):
    """Runs `command`; returns (output, status), status None when it was ended after `timeout` s.

    What the command left running in its session is killed before this returns."""
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, env={**os.environ, **(environment or {})}, cwd=cwd)
        except OSError as error:
            return f"cannot run {command[0]}: {error}", 127
        status = None
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            # A moment to clean up (scripts/vm ends its guests), then no more.
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        output.seek(0)
        return output.read().decode(errors="replace"), status


def headers(path):
    """The `# key: value` lines in the comment block at the top of a test script."""
    found = {}
    with open(path, encoding="utf-8") as script:
        for line in script:
            if not line.startswith("#"):
                break
            match = re.match(r"^# ([a-z]+): (.*)$", line.rstrip())
            if match:
                found[match.group(1)] = match.group(2)
    return found


def scripts_in(folder):
    """Executable .sh and .py files of `folder`, in order."""
    if not os.path.isdir(folder):
        return []
    return [
        os.path.join(folder, name) for name in sorted(os.listdir(folder))
        if name.endswith((".sh", ".py")) and os.access(os.path.join(folder, name), os.X_OK)]
