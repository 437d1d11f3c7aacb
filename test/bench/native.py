# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Ordinary programs on the loopback device, stock or under the library, and pairs of their runs."""

import os
import statistics
import subprocess

PAIRS = 15  # of a stock and an adverb run, one after the other


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
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        return [float(word) for word in done.stdout.split()]

    def close(self):
        path = "/dev/shm/" + self.environment["ADVERB_LOOPBACK_FABRIC"]
        if os.path.exists(path):
            os.unlink(path)


def interval(ordered):
    """95% of the median of so many, by ranks (binomial); of fewer than six all there is"""
    at = max(int(len(ordered) / 2 - 0.98 * len(ordered) ** 0.5), 0)
    return ordered[at], ordered[-1 - at]


def verdict(low, high, bar):
    return "over" if low > bar else "held" if high <= bar else "undecided"


def paired(stock, adverb, bar=None):
    """A row's figures of PAIRS runs of each. It fails only when the whole interval of the median's
    ratio lies beyond the bar: of 15 from the 4th to the 12th (96.5%)."""
    pairs = [(stock(), adverb()) for _ in range(PAIRS)]
    ordered = sorted(b / a for a, b in pairs)
    low, high = interval(ordered)
    row = {"stock": statistics.median(a for a, _ in pairs),
           "adverb": statistics.median(b for _, b in pairs),
           "ratio": round(statistics.median(ordered), 3), "low": round(low, 3), "high": round(high, 3)}
    if bar is not None:
        row |= {"value": round(low, 3), "bar": round(bar, 3), "verdict": verdict(low, high, bar)}
    return row
