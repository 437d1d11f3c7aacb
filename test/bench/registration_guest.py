# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What `registration` has virtual hosts measure: registrations as instructions, and, with soft-RoCE, what is pinned
and how fast by the clock."""

import os
import subprocess
import sys

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
LONGEST = 1500  # s, of a host


def progress(text):
    print(f"registration: {text}", file=sys.stderr, flush=True)


def lines(build, options, command):
    """What the host says, but for its progress, which goes on to stderr; None: there is no such host to be had"""
    words = [os.path.join(REPO, "scripts", "vm"), "--mem", "3072", "--timeout", str(LONGEST), *options, "--", command]
    said = []
    with subprocess.Popen(words, env={**os.environ, "ADVERB_BUILD": build}, stdout=subprocess.PIPE, text=True) as guest:
        for line in guest.stdout:
            if line.startswith("registration: "):
                print(line, end="", file=sys.stderr, flush=True)
            else:
                said.append(line)
    if guest.returncode == 77:
        return None
    if guest.returncode != 0:
        raise RuntimeError("the guest failed:\n" + "".join(said))
    return said


def instructions(build, kernel, mappings, rounds, sizes):
    """({(whose, mappings, bytes, state): [(register, deregister)]}, [(instructions that a loop has, that were counted)])

    With --icount a nanosecond is an instruction, so the program's clock counts those of user and kernel. `sizes`: of
    whose, the bytes."""
    runs = [f"echo registration: {kernel}, {many} mappings, {whose}; "
            f"{'adverb run --profile unpinned -- ' if whose == 'adverb' else ''}"
            f"$ADVERB_BUILD/test/bench/bench_registration {many} {rounds} {' '.join(map(str, sizes[whose]))} "
            f"| sed 's/^/{whose} {many} /'" for many in mappings for whose in sizes]
    clock = "sed 's/^/clocksource /' /sys/devices/system/clocksource/clocksource0/current_clocksource"
    said = lines(build, ["--kernel", kernel, "--icount"], f"{clock}; {'; '.join(runs)}")
    if said is None:
        return None
    found, loops = {}, []
    for line in said:
        words = line.split()
        if words[0] == "clocksource":
            progress(f"{kernel}: the clock is {words[1]}")
        if len(words) < 4 or words[0] not in sizes:
            continue
        if words[2] == "loop":
            loops.append((int(words[3]), int(words[4])))
        elif words[2].isdigit():
            key = words[0], int(words[1]), int(words[2]), words[3]
            found.setdefault(key, []).append((int(words[4]), int(words[5])))
    if not found or not loops:
        raise RuntimeError("the guest measured nothing:\n" + "".join(said))
    return found, loops


def by_the_clock(build, turns):
    """[the words of a line] of registration_guest.sh"""
    return [line.split() for line in lines(build, [], f"test/bench/registration_guest.sh {turns}")]
