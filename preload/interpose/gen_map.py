#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""verbs.def -> version script of libadverb.so: usage gen_map.py verbs.def OUTPUT"""
import re
import sys


def hooks(text):
    """(node, symbol) of every HOOK line."""
    return [
        (node, "ibv_" + name)
        for name, node in re.findall(r"^HOOK\([^,]+,\s*(\w+),\s*([\w.]+)", text, re.M)
    ]


def main():
    with open(sys.argv[1], encoding="utf-8") as table:
        nodes = {}
        for node, symbol in hooks(table.read()):
            nodes.setdefault(node, []).append(symbol)
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        previous = ""
        for node in sorted(nodes, key=lambda n: tuple(map(int, re.findall(r"\d+", n)))):
            out.write(node + " {\n  global:\n")
            out.writelines(f"    {symbol};\n" for symbol in sorted(nodes[node]))
            out.write("  local:\n    *;\n" if not previous else "")
            out.write("}" + previous + ";\n")
            previous = " " + node


if __name__ == "__main__":
    main()
