# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a managed queue pair costs: instructions from post to poll between two Worlds, and, natively on
the loopback device, time and memory beside stock under the default policy."""

import os
import statistics
import subprocess

from callgrind import instructions

ROUNDS = 1000  # as managed.cpp
# (case, the stock one beside it, requests of a post, bar for each request, title)
CASES = [
    ("write_pinned", "write_stock", 1, 150, "WRITE of 64 B, both sides pinned"),
    ("write_list_pinned", "write_list_stock", 8, 150, "of a list of 8 of them, each"),
    ("send_pinned", "send_stock", 1, 150, "SEND of 64 B, both sides pinned"),
    ("write_staged", "write_stock", 1, 350, "WRITE of 64 B, source unpinned: staged"),
    ("write_windowed", "write_large_stock", 1, 350, "WRITE of 32 KiB, source unpinned: in a window"),
]
PAIRS = 15     # of a stock and an adverb run, one after the other
SECONDS = 0.3  # of one run
RATES = [(threads, outstanding) for threads in (1, 2, 4) for outstanding in (1, 16, 64)]
JUDGED_THREADS = 2  # with more threads than CPUs the scheduler is measured, too
LATENCY, RATE, MEMORY = 1.10, 1 / 0.95, 1.25
DEPTHS = (16, 256, 4096)


def instruction_rows(build):
    counts = instructions(os.path.join(build, "test/bench/bench_managed"), collect_at_start=False)
    for name, beside, requests, bar, title in CASES:
        stock, adverb = (counts[n] / ROUNDS / requests for n in (beside, name))
        yield {"name": f"{name}_instructions_added", "title": title, "stock": round(stock, 1),
               "adverb": round(adverb, 1), "value": round(adverb - stock, 1), "bar": bar}


class Native:
    """The ordinary program, stock or under the library, in a network of its own."""

    def __init__(self, build):
        self.program = os.path.join(build, "test/bench/bench_rate")
        self.environment = {"LD_LIBRARY_PATH": os.path.join(build, "test/loopback"),
                            "ADVERB_LOOPBACK_FABRIC": f"adverb-bench.{os.getpid()}"}
        self.adverb = {"LD_PRELOAD": os.path.join(build, "preload/libadverb.so"),
                       "ADVERB_POLICY": "default"}
        self.network = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]

    def run(self, adverb, *words):
        environment = {**self.environment, **(self.adverb if adverb else {})}
        command = [*self.network, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", "env",
                   *(f"{k}={v}" for k, v in environment.items()), self.program, *map(str, words)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        return [float(word) for word in done.stdout.split()]

    def close(self):
        path = "/dev/shm/" + self.environment["ADVERB_LOOPBACK_FABRIC"]
        if os.path.exists(path):
            os.unlink(path)


def interval(ratios):
    """The median's 95% interval by ranks: of 15, the 4th and the 12th (binomial, 96.5%)."""
    ordered = sorted(ratios)
    return ordered[3], ordered[len(ordered) - 4]


def rate_rows(native):
    for threads, outstanding in RATES:
        pairs = [(native.run(False, "rate", threads, outstanding, SECONDS),
                  native.run(True, "rate", threads, outstanding, SECONDS)) for _ in range(PAIRS)]
        ratios = [adverb[0] / stock[0] for stock, adverb in pairs]
        low, high = interval(ratios)
        bar = LATENCY if outstanding == 1 else RATE
        row = {"name": f"write_time_{threads}x{outstanding}",
               "title": f"WRITE of 64 B, {threads} thread{'s'[:threads - 1]}, {outstanding} outstanding",
               "stock": statistics.median(stock[0] for stock, _ in pairs),
               "adverb": statistics.median(adverb[0] for _, adverb in pairs),
               "stock_cpu": statistics.median(stock[1] for stock, _ in pairs),
               "adverb_cpu": statistics.median(adverb[1] for _, adverb in pairs),
               "ratio": round(statistics.median(ratios), 3), "low": round(low, 3), "high": round(high, 3)}
        if threads <= JUDGED_THREADS:  # fails only when the whole interval lies beyond the bar
            row |= {"value": round(low, 3), "bar": round(bar, 3),
                    "verdict": "over" if low > bar else "held" if high <= bar else "undecided"}
        yield row


def memory_rows(native):
    for depth in DEPTHS:
        stock, adverb = (min(native.run(with_adverb, "memory", depth)[0] for _ in range(3))
                         for with_adverb in (False, True))
        yield {"name": f"memory_{depth}", "title": f"resident KiB of a queue pair of depth {depth}, with its CQ",
               "stock": round(stock / 1024, 1), "adverb": round(adverb / 1024, 1),
               "value": round(adverb / stock, 3), "bar": MEMORY}


def run(build):
    native = Native(build)
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
