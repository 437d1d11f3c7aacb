# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What `registration` has virtual hosts measure: registrations as instructions, and, with soft-RoCE, what is pinned
and how fast by the clock."""

import guest

VM = ("--mem", "3072", "--timeout", "7200")


def instructions(build, kernel, mappings, rounds, sizes):
    """((mappings, bytes), {(whose, mappings, bytes, state): [(register, deregister)]}, [(instructions that a loop has,
    that were counted)]) after each number of bytes, of all up to then.

    With --icount a nanosecond is an instruction, so the program's clock counts those of user and kernel. `sizes`: of
    each number of bytes, whose registration is measured."""
    runs = [f"{'adverb run --profile unpinned -- ' if whose == 'adverb' else ''}"
            f"$ADVERB_BUILD/test/bench/bench_registration {many} {rounds} {size} | sed 's/^/{whose} {many} /'"
            + (f"; echo end {many} {size}" if whose == sizes[size][-1] else "")
            for many in mappings for size in sizes for whose in sizes[size]]
    found, loops = {}, []
    for line in guest.lines(build, *VM, "--kernel", kernel, "--icount", "--", "; ".join(runs)):
        words = line.split()
        if words[:1] == ["end"]:
            yield (int(words[1]), int(words[2])), found, loops
        elif len(words) == 5 and words[2] == "loop":
            loops.append((int(words[3]), int(words[4])))
        elif len(words) == 6 and words[2].isdigit():
            key = words[0], int(words[1]), int(words[2]), words[3]
            found.setdefault(key, []).append((int(words[4]), int(words[5])))


def by_the_clock(build, *words):
    """(part, [the words of each of its lines]) of registration_guest.sh, as each part ends"""
    said = []
    for line in guest.lines(build, *VM, "--", f"test/bench/registration_guest.sh {' '.join(map(str, words))}"):
        if line.startswith("end "):
            yield line.removeprefix("end "), said
        else:
            said.append(line.split())
