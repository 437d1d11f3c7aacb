#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Makes the version script and the fallbacks from the installed libibverbs.

gen_map.py LIBRARY MAP FALLBACKS.c: every name LIBRARY exports gets the version node of its
default there, and a weak definition that refuses: what this device implements overrides it. A node
of its own has what tests and benches ask this device only.
"""
import re
import subprocess
import sys

POINTER = re.compile(r"ibv_(import|open|create|alloc)_|_verbs_init_and_alloc_context|"
                     r"verbs_open_device")
QUIET = re.compile(r"register_driver|_uninit_context|verbs_set_ops|verbs_init_cq|__verbs_log|"
                   r"unimport_")


def node_order(node):
    return (node.startswith("IBVERBS_PRIVATE"), [int(n) for n in re.findall(r"\d+", node)])


def exports(library):
    table = {}
    out = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", library],
                         check=True, capture_output=True, text=True).stdout
    for line in out.splitlines():
        _, kind, symbol = line.split(maxsplit=2)
        if kind == "A" or "@" not in symbol:
            continue
        name, default, node = re.match(r"([^@]+)(@@?)(.+)", symbol).groups()
        if default == "@@" or name not in table:
            table[name] = (node, kind)
    return table


def nodes(library):
    out = subprocess.run(["nm", "-D", "--with-symbol-versions", library], check=True,
                         capture_output=True, text=True).stdout
    return sorted(set(re.findall(r" A (IBVERBS_\S+)", out)), key=node_order)


def fallback(name, kind):
    if kind in "BD":
        return f"__attribute__((weak)) long {name};\n"
    if QUIET.search(name):
        return f"__attribute__((weak)) void {name}(void) {{}}\n"
    if POINTER.match(name) and not name.startswith("ibv_cmd_"):
        return (f"__attribute__((weak)) void *{name}(void)\n"
                "{\n  errno = EOPNOTSUPP;\n  return 0;\n}\n")
    return (f"__attribute__((weak)) int {name}(void)\n"
            "{\n  errno = EOPNOTSUPP;\n  return EOPNOTSUPP;\n}\n")


def main():
    library, map_path, c_path = sys.argv[1:]
    table = exports(library)
    with open(map_path, "w", encoding="utf-8") as out:
        previous = ""
        for node in nodes(library) or sorted({n for n, _ in table.values()}, key=node_order):
            names = sorted(n for n, (where, _) in table.items() if where == node)
            scope = f"  global: {'; '.join(names)};\n" if names else ""
            private = node.startswith("IBVERBS_PRIVATE")
            local = "" if previous else "  local: *;\n"
            out.write(f"{node} {{\n{scope}{local}}}{'' if private else previous};\n")
            if not private:
                previous = f" {node}"
        out.write("LOOPBACK {\n  global: adverb_loopback_*;\n};\n")
    with open(c_path, "w", encoding="utf-8") as out:
        out.write("#include <errno.h>\n")
        for name, (_, kind) in sorted(table.items()):
            out.write(fallback(name, kind))


main()
