# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the first request of a queue pair takes that is posted as soon as it may send, stock and under adverb."""

import statistics

from programs import Programs, answers

KNOWN = 1000       # queue pairs of one process after the other
PROCESSES, SHORT_PROCESSES = 200, 60  # with one queue pair each, and without --long
MEDIAN, P99 = 3, 10  # ms


def known_path(programs, _):
    program = programs.ask(KNOWN + 1)
    return [first for first, _ in answers(program, KNOWN + 1)[1:]]


def new_processes(programs, options):
    times = []
    for _ in range(PROCESSES if options.long else SHORT_PROCESSES):
        program = programs.ask(1)
        times.append(answers(program, 1)[0][0])
        programs.end(program)
    return times


def p99(times):
    return statistics.quantiles(times, n=100)[98]


def measure(build, scratch, options):
    for name, kind in {"a known path": known_path, "a new process": new_processes}.items():
        times = []
        for adverb in (False, True):
            with Programs(build, scratch, adverb) as programs:
                times.append(kind(programs, options))
                if adverb:
                    programs.broker()  # adverb was in them
        stock, ours = times
        for words, figure, bar in (("median", statistics.median, MEDIAN), ("p99", p99, P99)):
            yield {"name": f"first request, {name}: {words} of {len(ours)}", "unit": "ms",
                   "value": round(figure(ours), 3), "stock": round(figure(stock), 3), "at_most": bar}
