#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Prints uprobe definitions for entry (reg_in) and return (reg_out) of LIBRARY's functions that
register memory: how long a registration takes, as the program sees it, is measured from outside."""

import re
import subprocess
import sys

NAMES = re.compile(r"^(ibv_reg_mr|ibv_reg_mr_iova|ibv_reg_mr_iova2)(@|$)")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    library = sys.argv[1]
    segments = []
    for line in output("readelf", "-lW", library).splitlines():
        words = line.split()
        if words[:1] == ["LOAD"]:
            segments.append(tuple(int(w, 16) for w in (words[1], words[2], words[4])))
    addresses = set()
    for line in output("nm", "-D", "--defined-only", library).splitlines():
        address, kind, name = line.split(maxsplit=2)
        if kind in "TtWi" and NAMES.match(name):
            addresses.add(int(address, 16))
    for number, address in enumerate(sorted(addresses)):
        for offset, start, size in segments:
            if start <= address < start + size:
                where = f"{library}:{address - start + offset:#x}"
                print(f"p:demo/reg_in{number} {where}\nr:demo/reg_out{number} {where}")


main()
