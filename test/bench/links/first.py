# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the first request of a queue pair takes that is posted as soon as it may send, stock and under adverb."""

import statistics

from programs import Programs, answers

KNOWN = 1000       # queue pairs of one process after the other
PROCESSES = 200    # with one queue pair each
MEDIAN, P99 = 3, 10  # ms


def known_path(programs):
    program = programs.ask(KNOWN + 1)
    return [first for first, _ in answers(program, KNOWN + 1)[1:]]


def new_processes(programs):
    times = []
    for _ in range(PROCESSES):
        program = programs.ask(1)
        times.append(answers(program, 1)[0][0])
        programs.end(program)
    return times


def measure(build, scratch):
    kinds = {"a known path": known_path, "a new process": new_processes}
    times = {}
    for adverb in (False, True):
        for name, kind in kinds.items():
            with Programs(build, scratch, adverb) as programs:
                times[name, adverb] = kind(programs)
    for name in kinds:
        stock, ours = times[name, False], times[name, True]
        for words, figure, bar in (("median", statistics.median, MEDIAN),
                                   ("p99", lambda all_: statistics.quantiles(all_, n=100)[98], P99)):
            yield {"name": f"first request, {name}: {words} of {len(ours)}", "unit": "ms",
                   "value": round(figure(ours), 3), "stock": round(figure(stock), 3), "bar": bar}
