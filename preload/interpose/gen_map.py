#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""verbs.def and tables of the C library -> version script of libadverb.so: usage gen_map.py TABLE... OUTPUT"""
import re
import sys


def hooks(text):
    """(node, symbol) of every HOOK, SIGNALS, MAPPINGS and DESCRIPTORS line; aliases are told by the assembler."""
    return [
        (node, ("ibv_" if kind == "HOOK" else "") + name)
        for kind, name, node in re.findall(
            r"^(HOOK|SIGNALS|MAPPINGS|DESCRIPTORS)\([^,]+,\s*(\w+),\s*([\w.]+)", text, re.M)
    ]


def main():
    nodes = {"ADVERB_1": ["adverb_api"]}  # adverb.h looks it up
    for path in sys.argv[1:-1]:
        with open(path, encoding="utf-8") as table:
            for node, symbol in hooks(table.read()):
                nodes.setdefault(node, []).append(symbol)
    with open(sys.argv[-1], "w", encoding="utf-8") as out:
        previous = {}
        for node in sorted(nodes, key=lambda n: tuple(map(int, re.findall(r"\d+", n)))):
            family = node.split("_")[0]
            out.write(node + " {\n  global:\n")
            out.writelines(f"    {symbol};\n" for symbol in sorted(nodes[node]))
            out.write("  local:\n    *;\n" if not previous else "")
            out.write("}" + previous.get(family, "") + ";\n")
            previous[family] = " " + node


if __name__ == "__main__":
    main()
