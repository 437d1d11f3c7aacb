# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a virtual host says while it measures."""

import os
import subprocess
import sys

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
# Every host has them; test/system/lib.sh starts programs by the last.
TARGETS = ["preload/libadverb.so", "preload/tools/adverb", "test/system/measured"]
NOT_HERE = 77


def lines(build, *words):
    """Each line that scripts/vm with these words prints, as it comes. Raises if the host fails or is not
    to be had; whoever has enough closes the generator, which ends the host."""
    print("bench: boots a virtual host, which takes a minute", file=sys.stderr, flush=True)
    last = []
    with subprocess.Popen([os.path.join(REPO, "scripts", "vm"), *words], env={**os.environ, "ADVERB_BUILD": build},
                          stdout=subprocess.PIPE, text=True) as host:
        try:
            for line in host.stdout:
                last = [*last[-9:], line]
                yield line.rstrip("\n")
        except GeneratorExit:
            host.terminate()
            raise
    if host.returncode == NOT_HERE:
        raise RuntimeError("there is no such virtual host to be had here")
    if host.returncode != 0:
        raise RuntimeError(f"the virtual host failed with status {host.returncode}:\n" + "".join(last))
