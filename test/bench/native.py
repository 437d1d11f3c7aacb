# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Ordinary programs on the loopback device, stock or under the library, and pairs of their runs."""

import glob
import json
import os
import statistics
import subprocess
import tempfile

from bars import PAIRS

TARGETS = ["preload/libadverb.so", "preload/tools/adverb", "test/loopback/libibverbs.so.1"]
LONGEST = 300  # s of a run: whoever takes longer hangs


class Native:
    """Runs a program in a network of its own."""

    def __init__(self, build, program, policy="default"):
        self.program = os.path.join(build, "test/bench", program)
        self.environment = {"LD_LIBRARY_PATH": os.path.join(build, "test/loopback"),
                            "ADVERB_LOOPBACK_FABRIC": f"adverb-bench.{os.getpid()}"}
        self.adverb = {"LD_PRELOAD": os.path.join(build, "preload/libadverb.so"),
                       "ADVERB_POLICY": policy}
        self.network = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]

    def run(self, adverb, *words, before=(), **more):
        """The numbers it prints. `before`: words before the program's; `more`: for its environment"""
        environment = {**self.environment, **(self.adverb | more if adverb else {})}
        command = [*self.network, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *before, "env",
                   *(f"{k}={v}" for k, v in environment.items()), self.program, *map(str, words)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LONGEST)
        if "cannot be preloaded" in done.stderr:  # the program goes on without
            raise RuntimeError(done.stderr)
        return [float(word) for word in done.stdout.split()]

    def counters(self, *words, **more):
        """{counter: of both processes} of a run under the library, which shows that it was there"""
        with tempfile.TemporaryDirectory() as scratch:
            self.run(True, *words, ADVERB_STATS_FILE=os.path.join(scratch, "stats.%p"), **more)
            totals = {}
            for path in glob.glob(os.path.join(scratch, "stats.*")):
                with open(path, encoding="utf-8") as file:
                    for name, value in json.load(file)["counters"].items():
                        totals[name] = totals.get(name, 0) + value
        if not totals:
            raise RuntimeError("the program has left no counters: adverb was not in it")
        return totals

    def close(self):
        path = "/dev/shm/" + self.environment["ADVERB_LOOPBACK_FABRIC"]
        if os.path.exists(path):
            os.unlink(path)


def interval(ordered):
    """95% of the median of so many, by ranks (binomial); of fewer than six all there is"""
    at = max(int(len(ordered) / 2 - 0.98 * len(ordered) ** 0.5), 0)
    return ordered[at], ordered[-1 - at]


def ratio(stock, adverb):
    """A row's figures of pairs of runs: adverb's time by stock's, the median and its interval."""
    ordered = sorted(b / a for a, b in zip(stock, adverb))
    low, high = interval(ordered)
    return {"stock": statistics.median(stock), "adverb": statistics.median(adverb), "pairs": len(ordered),
            "value": round(statistics.median(ordered), 3), "low": round(low, 3), "high": round(high, 3)}


def paired(stock, adverb, pairs=PAIRS):
    """Of so many runs of each by turns: of 15 the interval is from the 4th to the 12th (96.5%)."""
    runs = [(stock(), adverb()) for _ in range(pairs)]
    return ratio([a for a, _ in runs], [b for _, b in runs])


def ratio_line(row, unit=1000):
    """Times in units of so many nanoseconds, the ratio and its interval"""
    return (f"{row['title']:48}{row['stock'] / unit:10.2f}{row['adverb'] / unit:10.2f}{row['value']:7.2f}"
            f"{row['low']:8.2f} ..{row['high']:5.2f}")


def ratio_heading(what, stock="stock"):
    return f"{what:48}{stock:>10}{'adverb':>10}{'ratio':>7}{'95% of it':>15}"
