# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What an unmanaged object pays: instructions under callgrind, and time beside them."""

import os
import subprocess

from callgrind import instructions

ROUNDS = 10000
# Instructions added to one post+poll, at most.
BARS = {"extended": 0, "plain": 25}
TITLES = {"extended": "extended API (ibv_wr_*, ibv_start_poll)",
          "plain": "through the patched context (ibv_post_send, ibv_poll_cq)"}


def nanoseconds(program):
    """{case: nanoseconds per round}"""
    out = subprocess.run([program, "1000000"], check=True, capture_output=True, text=True, timeout=300)
    return {name: float(value) for name, value in (line.split() for line in out.stdout.splitlines())}


def run(build):
    program = os.path.join(build, "test/bench/bench_interpose")
    counts, times = instructions(program, str(ROUNDS)), nanoseconds(program)
    rows = []
    for api, bar in BARS.items():
        stock, ours = counts[f"{api}_stock"], counts[f"{api}_adverb"]
        rows.append({
            "name": f"{api}_instructions_added", "title": TITLES[api],
            "stock": round(stock / ROUNDS, 2), "adverb": round(ours / ROUNDS, 2),
            "value": round((ours - stock) / ROUNDS, 2), "bar": bar,
            "stock_ns": times[f"{api}_stock"], "adverb_ns": times[f"{api}_adverb"],
            "ratio": round(times[f"{api}_adverb"] / times[f"{api}_stock"], 3),
        })
    return rows


def show(rows):
    print("An unmanaged object's post+poll over a provider that does nothing")
    print(f"{'':58}{'instructions':>24}{'nanoseconds':>22}{'ratio':>8}")
    print(f"{'':58}{'stock':>8}{'adverb':>8}{'added':>8}{'stock':>11}{'adverb':>11}")
    for r in rows:
        print(f"{r['title']:58}{r['stock']:8.1f}{r['adverb']:8.1f}{r['value']:8.1f}"
              f"{r['stock_ns']:11.2f}{r['adverb_ns']:11.2f}{r['ratio']:8.2f}")
