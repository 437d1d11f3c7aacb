# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a managed queue pair costs: instructions from post to poll between two Worlds, and, natively on
the loopback device, time and memory beside stock under the default policy."""

import os
import statistics

from callgrind import instructions
from native import Native, paired

ROUNDS = 1000  # as managed.cpp
# (case, the stock one beside it, requests of a post, bar for each request, title)
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


def instruction_rows(build):
    counts = instructions(os.path.join(build, "test/bench/bench_managed"), collect_at_start=False)
    for name, beside, requests, bar, title in CASES:
        stock, adverb = (counts[n] / ROUNDS / requests for n in (beside, name))
        yield {"name": f"{name}_instructions_added", "title": title, "stock": round(stock, 1),
               "adverb": round(adverb, 1), "value": round(adverb - stock, 1), "bar": bar}


def rate_rows(native):
    for threads, outstanding in RATES:
        bar = LATENCY if outstanding == 1 else RATE
        used = {False: [], True: []}

        def time(adverb, words=("rate", threads, outstanding, SECONDS), used=used):
            wall, cpu = native.run(adverb, *words)
            used[adverb].append(cpu)
            return wall

        # With more threads than CPUs the scheduler is measured, too.
        row = paired(lambda: time(False), lambda: time(True), bar if threads <= JUDGED_THREADS else None)
        yield {"name": f"write_time_{threads}x{outstanding}",
               "title": f"WRITE of 64 B, {threads} thread{'s'[:threads - 1]}, {outstanding} outstanding",
               "stock_cpu": statistics.median(used[False]), "adverb_cpu": statistics.median(used[True]), **row}


def memory_rows(native):
    for depth in DEPTHS:
        stock, adverb = (min(native.run(with_adverb, "memory", depth)[0] for _ in range(3))
                         for with_adverb in (False, True))
        yield {"name": f"memory_{depth}", "title": f"resident KiB of a queue pair of depth {depth}, with its CQ",
               "stock": round(stock / 1024, 1), "adverb": round(adverb / 1024, 1),
               "value": round(adverb / stock, 3), "bar": MEMORY}


def run(build):
    native = Native(build, "bench_rate")
    try:
        return [*instruction_rows(build), *memory_rows(native), *rate_rows(native)]
    finally:
        native.close()


def show(rows):
    print("A managed queue pair under the default policy")
    print(f"{'instructions from post to poll, over a table of functions':60}{'stock':>9}{'adverb':>9}{'added':>9}{'bar':>7}")
    for r in (r for r in rows if "instructions" in r["name"]):
        print(f"{r['title']:60}{r['stock']:9.1f}{r['adverb']:9.1f}{r['value']:9.1f}{r['bar']:7}")
    print(f"{'memory':60}{'stock':>9}{'adverb':>9}{'ratio':>9}{'bar':>7}")
    for r in (r for r in rows if r["name"].startswith("memory")):
        print(f"{r['title']:60}{r['stock']:9.1f}{r['adverb']:9.1f}{r['value']:9.2f}{r['bar']:7.2f}")
    print(f"{'nanoseconds per request, loopback device (CPU beside)':44}{'stock':>8}{'(CPU)':>8}{'adverb':>8}{'(CPU)':>8}"
          f"{'ratio':>7}{'95% of it':>15}{'bar':>7}")
    for r in (r for r in rows if r["name"].startswith("write_time")):
        judged = f"{r['bar']:7.2f} {r['verdict']}" if "bar" in r else "      -"
        print(f"{r['title']:44}{r['stock']:8.0f}{r['stock_cpu']:8.0f}{r['adverb']:8.0f}{r['adverb_cpu']:8.0f}"
              f"{r['ratio']:7.2f}{r['low']:8.2f} ..{r['high']:5.2f}{judged}")
