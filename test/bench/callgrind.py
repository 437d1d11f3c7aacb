# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Instructions of a program that dumps them case by case."""

import glob
import os
import re
import subprocess
import tempfile


def instructions(*command, collect_at_start=True):
    """{name of the dump: instructions since the one before} of a program under callgrind"""
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--collect-atstart={'yes' if collect_at_start else 'no'}",
             f"--callgrind-out-file={scratch}/out", *command],
            capture_output=True, text=True, timeout=1800, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"valgrind: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        counts = {}
        for path in glob.glob(os.path.join(scratch, "out*")):
            with open(path, encoding="utf-8") as dump:
                text = dump.read()
            trigger = re.search(r"^desc: Trigger: Client Request: (\w+)$", text, re.M)
            total = re.search(r"^(?:totals|summary): (\d+)", text, re.M)
            if trigger and total:
                counts[trigger.group(1)] = int(total.group(1))
        return counts
