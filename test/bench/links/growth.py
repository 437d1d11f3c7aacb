# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What one more queue pair costs, bound, proven and used twice, when there are few and when there are many."""

import statistics

from programs import Programs, answers
from syscalls import Counted

TURN = 512             # queue pairs of those that ask: with their other ends they are a thousand of all
LAST = 9               # turn, after that in which the links are made; the device has room for 15
PROCESSES = (4, 64)
FLAT = 1.1


def turn(askers):
    """Each makes its share, one after the other"""
    times = []
    for asker in askers:
        asker.stdin.write("\n")
        times += answers(asker, TURN // len(askers))
    return [first for first, _ in times]


def grow(build, scratch, adverb, processes, turns):
    """[(system calls, sends on sockets, median ms of a first request) for one more queue pair] in these turns"""
    costs = []
    with Programs(build, scratch, adverb, spin=0) as programs:
        askers = [programs.ask(TURN // processes, "again") for _ in range(processes)]
        for asker in askers:
            answers(asker, TURN // processes)  # all links are made
        pids = [program.pid for program in programs.running] + ([programs.broker()] if adverb else [])
        for number in range(1, turns[-1] + 1):
            if number not in turns:
                turn(askers)
                continue
            with Counted(pids) as counted:
                times = turn(askers)
            costs.append((counted.calls / TURN, counted.sends / TURN, statistics.median(times)))
    return costs


def measure(build, scratch, _):
    few, many = PROCESSES
    kinds = [(whose, processes, (1, LAST) if processes == many else (1,)) for whose in (False, True)
             for processes in PROCESSES]
    costs = {(whose, processes): grow(build, scratch, whose, processes, turns) for whose, processes, turns in kinds}
    # Of adverb alone: what the program calls itself is not to hide it.
    ours = {processes: [(cost[0] - stock[0], *cost[1:]) for cost, stock in zip(costs[True, processes],
                                                                               costs[False, processes])]
            for processes in PROCESSES}
    compared = {f"{2 * TURN * (LAST + 1):,} queue pairs to {4 * TURN:,}": (ours[many][0], ours[many][1]),
                f"{many} processes on the host to {few}": (ours[few][0], ours[many][0])}
    for sizes, (less, more) in compared.items():
        for at, what, bar in ((0, "system calls for", FLAT), (1, "control messages for", FLAT),
                              (2, "first request of", None)):
            yield {"name": f"{what} one more, {sizes}", "unit": "times", "value": round(more[at] / less[at], 2),
                   "few": round(less[at], 2), "many": round(more[at], 2)} | ({"at_most": bar} if bar else {})
