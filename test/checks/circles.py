#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# gate: yes
"""usage: circles.py [kernel] [preload]: no circle of files in the folder (both, unless one is named): each
file uses what stands below it, and nothing below uses it in turn.

In kernel/ one header is everybody's, so what counts are names: a .c file uses the one that defines a
function or variable which it names and a header declares. In preload/ it is what is included: a header and
the source of its name are one file here."""

import os
import re
import subprocess
import sys

COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
# A prototype or an extern variable, at the start of a line; what is indented is a member of something.
DECLARATION = re.compile(r"^(?!static\b|typedef\b|(?:struct|union|enum)\s+\w+;)[a-z][^;{}()=#]*?\b(\w+)(?:\[[^;]*\])?[;(]",
                         re.MULTILINE)
# What defines the name %s, outside of any function.
DEFINITION = r"^(?:(?!static\b|extern\b)[a-z][^;{}()=#\n]*\b%s(?:\(|\[|;| =)|(?:LIST_HEAD|DEFINE_\w+)\(%s\))"


def tracked(*patterns):
    """Path -> text without comments and strings."""
    paths = subprocess.run(["git", "ls-files", "--", *patterns], capture_output=True, text=True, check=True).stdout
    texts = {}
    for path in paths.split():
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                texts[path] = COMMENT_OR_STRING.sub(" ", file.read())
    return texts


def by_name():
    """Files of kernel/ -> the files each uses; and the names whose definition is not in exactly one file."""
    headers, sources = tracked("kernel/*.h"), tracked("kernel/*.c")
    names = {name for text in headers.values() for name in DECLARATION.findall(text)}
    owners = {name: [path for path, text in sources.items()
                     if re.search(DEFINITION % (name, name), text, re.MULTILINE)] for name in names}
    unclear = sorted(name for name, paths in owners.items() if len(paths) != 1)
    uses = {}
    for path, text in sources.items():
        words = set(re.findall(r"\w+", text))
        uses[path] = {owners[name][0] for name in words & names if owners[name]} - {path}
    return uses, unclear


def includes():
    """Files of preload/ -> the files each includes."""
    texts = {}
    for path in tracked("preload/*.h", "preload/*.cpp", "preload/*.c", "preload/*.def"):
        with open(path, encoding="utf-8") as file:
            texts[path] = file.read()
    uses = {path: set() for path in texts}
    for path, text in texts.items():
        for name in re.findall(r'^\s*#\s*include\s+["<]([^">]+)[">]', text, re.MULTILINE):
            # As the compiler looks for it: beside the file, then in the include directories of preload/meson.build.
            for folder in (os.path.dirname(path), "preload", "preload/include"):
                included = os.path.normpath(os.path.join(folder, name))
                if included in texts:
                    uses[path].add(included)
                    break
    return uses


def by_include(included):
    """Files of preload/ without their endings -> the files each includes."""
    uses = {os.path.splitext(path)[0]: set() for path in included}
    for path, used in included.items():
        uses[os.path.splitext(path)[0]] |= {os.path.splitext(other)[0] for other in used}
    return {stem: used - {stem} for stem, used in uses.items()}


def taken_with_real_locks(included):
    """Sources that the simulation takes from the library as compiled there, and that know of locks all the same: a
    simulated lock has another size than what they were compiled with."""
    with open("test/sim/meson.build", encoding="utf-8") as file:
        compiled_anew = set(re.findall(r"'\.\./\.\./(preload/[\w/]+\.cpp)'", file.read()))

    def reached(path, seen):
        for used in included[path] - seen:
            seen.add(used)
            reached(used, seen)
        return seen
    return sorted(path for path in included
                  if re.match(r"preload/(memory|observe|policy)/.*\.cpp$", path) and path not in compiled_anew
                  and "preload/world/sync.h" in reached(path, set()))


def circles(uses):
    """The sets of files that lead back to themselves. (Tarjan: Depth-first search and linear graph algorithms,
    SIAM J. Comput. 1972.)"""
    found, order, lowest, stack = [], {}, {}, []

    def visit(path):
        order[path] = lowest[path] = len(order)
        stack.append(path)
        for used in sorted(uses[path]):
            if used not in order:
                visit(used)
            if used in stack:
                lowest[path] = min(lowest[path], lowest[used])
        if lowest[path] == order[path]:
            circle = stack[stack.index(path):]
            del stack[stack.index(path):]
            if len(circle) > 1:
                found.append(sorted(circle))

    for path in sorted(uses):
        if path not in order:
            visit(path)
    return found


def report(name, findings):
    print(f"not ok - {name}: {len(findings)} found" if findings else f"ok - {name}", flush=True)
    for finding in findings:
        print(finding)
    return not findings


def no_circle(folder, uses):
    if not any(uses.values()):
        return report(f"no circle of files in {folder}", ["no file uses another: this check reads them wrongly"])
    return report(f"no circle of files in {folder}",
                  [", ".join(f"{path} ({', '.join(sorted(uses[path] & set(circle)))})" for path in circle)
                   for circle in circles(uses)])


def main():
    folders = sys.argv[1:] or ["kernel", "preload"]
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    good = []
    if "kernel" in folders:
        uses, unclear = by_name()
        good += [report("what a header of kernel/ declares is defined in one file", unclear),
                 no_circle("kernel/", uses)]
    if "preload" in folders:
        included = includes()
        good += [no_circle("preload/", by_include(included)),
                 report("the simulation compiles all that knows of locks", taken_with_real_locks(included))]
    return 0 if good and all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
