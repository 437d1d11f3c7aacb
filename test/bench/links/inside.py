# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""inside.py BUILD [--quick|--long] PART...: measures these parts in this network, whose loopback device of the kernel
is up, and on ADVERB_LOOPBACK_FABRIC. Prints a row of JSON on each line, as it is measured."""

import argparse
import importlib
import json
import os
import sys
import tempfile
import traceback

HERE = os.path.dirname(os.path.realpath(__file__))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("parts", nargs="+")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--long", action="store_true")
    options = parser.parse_args()
    sys.dont_write_bytecode = True
    sys.path[:0] = [HERE, os.path.join(HERE, ".."), os.path.join(HERE, "..", "..", "liar")]
    for part in options.parts:
        try:
            with tempfile.TemporaryDirectory() as scratch:
                for row in importlib.import_module(part).measure(options.build, scratch, options):
                    print(json.dumps({"part": part, "table": "links", **row}), flush=True)
        except Exception as error:  # the other parts are measured all the same
            traceback.print_exc()
            print(json.dumps({"name": f"all that follows of {part}", "value": None, "failed": repr(error)}), flush=True)


main()
