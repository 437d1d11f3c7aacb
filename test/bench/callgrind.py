# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Instructions of a program that dumps them case by case."""

import collections
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


def named(text, names):
    """A name, which the file gives once and then abbreviates to its number"""
    number, name = re.match(r"\((\d+)\)(?: (.*))?", text).groups()
    if name:
        names[number] = name
    return names[number]


def by_function(dump, own, without):
    """{function: instructions} of what a dump has collected in the object whose path has `own` in it: those of its
    functions by themselves, and those of other objects' functions with all they call. Calls into the object with
    `without` in its path are left out."""
    objects, functions, counts = {}, {}, collections.Counter()
    ours = callee = function = target = None
    called = False
    for text in dump:
        word, _, rest = text.rstrip("\n").partition("=")
        if word == "ob":
            ours = named(rest, objects)
        elif word == "fn":
            function, callee = named(rest, functions), ours
        elif word == "cob":
            callee = named(rest, objects)
        elif word == "cfn":
            target = named(rest, functions)
        elif word == "calls":
            called = True
        elif text[:1] in "+-*0123456789" and text.strip():
            cost = int(text.split()[1])
            if own in ours and not called:
                counts[function] += cost
            elif own in ours and own not in callee and without not in callee:
                counts[target] += cost
            if called:
                called, callee = False, ours
    return counts
