#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""usage: unity.py PRELOAD FOLDER/NAME [--apart "STEM..."]... SOURCE...

Writes FOLDER/NAME.0.cpp, which includes the SOURCEs by their paths below PRELOAD, so that one compilation parses
their headers once; each --apart puts the sources of these stems into a file of their own, NAME.1.cpp and so on.
Meson's own unity builds name sources by absolute paths, by which ccache finds nothing that another clone compiled."""

import argparse
import os


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n", maxsplit=1)[0].removeprefix("usage: "))
    parser.add_argument("preload")
    parser.add_argument("name")
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--apart", action="append", default=[])
    options = parser.parse_args()
    groups = [[], *([] for _ in options.apart)]
    stems = {stem: n for n, words in enumerate(options.apart, 1) for stem in words.split()}
    for source in options.sources:
        stem = os.path.basename(source).removesuffix(".cpp")
        groups[stems.pop(stem, 0)].append(os.path.relpath(source, options.preload))
    if stems:
        parser.error(f"no such sources: {' '.join(stems)}")
    for n, sources in enumerate(groups):
        with open(f"{options.name}.{n}.cpp", "w", encoding="utf-8") as file:
            file.writelines(f'#include "{source}"\n' for source in sources)


if __name__ == "__main__":
    main()
