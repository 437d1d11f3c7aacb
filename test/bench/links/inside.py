# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""inside.py BUILD PART...: measures these parts in this network, whose loopback device of the kernel is up, and on
ADVERB_LOOPBACK_FABRIC. Prints a row of JSON on each line."""

import importlib
import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))


def main():
    build, *parts = sys.argv[1:]
    sys.dont_write_bytecode = True
    sys.path[:0] = [HERE, os.path.join(HERE, ".."), os.path.join(HERE, "..", "..", "liar")]
    for part in parts:
        with tempfile.TemporaryDirectory() as scratch:
            for row in importlib.import_module(part).measure(build, scratch):
                print(json.dumps({"part": part, **row}), flush=True)


main()
