# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a managed queue pair costs: instructions from post to poll between two Worlds, and, natively on
the loopback device, time and memory beside stock under the default policy."""

import os
import statistics

import native
from bars import attempt, failure
from callgrind import instructions

TARGETS = [*native.TARGETS, "test/bench/bench_managed", "test/bench/bench_rate"]
ROUNDS = 1000  # as managed.cpp
# (case, the stock one beside it, requests of a post, at most so many for each request, title)
CASES = [
    ("write_pinned", "write_stock", 1, 150, "WRITE of 64 B, both sides pinned"),
    ("write_list_pinned", "write_list_stock", 8, 150, "of a list of 8 of them, each"),
    ("send_pinned", "send_stock", 1, 150, "SEND of 64 B, both sides pinned"),
    ("write_staged", "write_stock", 1, 400, "WRITE of 64 B, source unpinned: staged"),
    ("write_windowed", "write_large_stock", 1, 350, "WRITE of 32 KiB, source unpinned: in a window"),
]
SECONDS = 0.3  # of one run
RATES = [(threads, outstanding) for threads in (1, 2, 4) for outstanding in (1, 16, 64)]
JUDGED_THREADS = 2
LATENCY, RATE, MEMORY = 1.10, 1 / 0.95, 1.25
DEPTHS = (16, 256, 4096)
TABLES = {
    "memory": "A managed queue pair under the default policy\n"
              f"{'resident KiB':60}{'stock':>9}{'adverb':>9}{'ratio':>9}",
    "instructions": f"{'instructions from post to poll, over a table of functions':60}"
                    f"{'stock':>9}{'adverb':>9}{'added':>9}",
    "time": native.ratio_heading("nanoseconds per request, loopback device") + f"{'(CPU:':>9}{'adverb)':>9}",
}


def instruction_rows(build):
    counts, failed = {}, None
    try:
        counts = instructions(os.path.join(build, "test/bench/bench_managed"), collect_at_start=False)
    except Exception as error:
        failed = error
    for name, beside, requests, bar, title in CASES:
        row = {"name": f"{name}_instructions_added", "table": "instructions", "title": title, "at_most": bar}

        def added(name=name, beside=beside, requests=requests):
            stock, adverb = (counts[n] / ROUNDS / requests for n in (beside, name))
            return {"stock": round(stock, 1), "adverb": round(adverb, 1), "value": round(adverb - stock, 1)}
        yield row | failure(failed) if failed else attempt(added, **row)


def rate_rows(programs):
    for threads, outstanding in RATES:
        bar = LATENCY if outstanding == 1 else RATE

        def beside(words=("rate", threads, outstanding, SECONDS)):
            used = {False: [], True: []}

            def time(adverb):
                wall, cpu = programs.run(adverb, *words)
                used[adverb].append(cpu)
                return wall
            row = native.paired(lambda: time(False), lambda: time(True))
            return row | {"stock_cpu": statistics.median(used[False]), "adverb_cpu": statistics.median(used[True])}

        # With more threads than CPUs the scheduler is measured, too.
        yield attempt(beside, name=f"write_time_{threads}x{outstanding}", table="time",
                      title=f"WRITE of 64 B, {threads} thread{'s'[:threads - 1]}, {outstanding} outstanding",
                      **({"at_most": round(bar, 3)} if threads <= JUDGED_THREADS else {}))


def memory_rows(programs):
    for depth in DEPTHS:
        def beside(depth=depth):
            stock, adverb = (min(programs.run(with_adverb, "memory", depth)[0] for _ in range(3))
                             for with_adverb in (False, True))
            return {"stock": round(stock / 1024, 1), "adverb": round(adverb / 1024, 1),
                    "value": round(adverb / stock, 3)}
        yield attempt(beside, name=f"memory_{depth}", table="memory", at_most=MEMORY,
                      title=f"a queue pair of depth {depth}, with its CQ")


def run(build, options):
    programs = native.Native(build, "bench_rate")
    try:
        yield from memory_rows(programs)
        yield from instruction_rows(build)
        if not options.quick:
            yield from rate_rows(programs)
    finally:
        programs.close()


def line(row):
    if row["table"] == "time":
        return native.ratio_line(row, 1) + f"{row['stock_cpu']:9.0f}{row['adverb_cpu']:9.0f}"
    return f"{row['title']:60}{row['stock']:9.1f}{row['adverb']:9.1f}{row['value']:9.2f}"
