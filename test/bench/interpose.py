# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What an unmanaged object pays: instructions under callgrind, and time beside them."""

import os
import subprocess

from bars import attempt
from callgrind import instructions

TARGETS = ["test/bench/bench_interpose"]
ROUNDS = 10000
# Instructions added to one post+poll, at most.
BARS = {"extended": 0, "plain": 25}
TITLES = {"extended": "extended API (ibv_wr_*, ibv_start_poll)",
          "plain": "through the patched context (ibv_post_send, ibv_poll_cq)"}
TABLES = {
    "instructions": "An unmanaged object's post+poll over a provider that does nothing\n"
                    f"{'instructions':58}{'stock':>9}{'adverb':>9}{'added':>9}",
    "time": f"{'nanoseconds':58}{'stock':>9}{'adverb':>9}{'ratio':>9}",
}


def nanoseconds(program):
    """{case: nanoseconds per round}"""
    out = subprocess.run([program, "1000000"], check=True, capture_output=True, text=True, timeout=300)
    return {name: float(value) for name, value in (line.split() for line in out.stdout.splitlines())}


def row_of(figures, api):
    return {"stock": figures[f"{api}_stock"], "adverb": figures[f"{api}_adverb"]}


def run(build, options):
    program = os.path.join(build, "test/bench/bench_interpose")
    counts = instructions(program, str(ROUNDS))

    def added(api):
        row = {whose: round(count / ROUNDS, 2) for whose, count in row_of(counts, api).items()}
        return row | {"value": round((counts[f"{api}_adverb"] - counts[f"{api}_stock"]) / ROUNDS, 2)}

    for api, bar in BARS.items():
        yield attempt(lambda api=api: added(api), name=f"{api}_instructions_added", table="instructions",
                      title=TITLES[api], at_most=bar)
    if options.quick:
        return
    times = nanoseconds(program)
    for api in BARS:
        row = row_of(times, api)
        yield {"name": f"{api}_time", "table": "time", "title": TITLES[api],
               "value": round(row["adverb"] / row["stock"], 3), **row}


def line(row):
    return f"{row['title']:58}{row['stock']:9.1f}{row['adverb']:9.1f}{row['value']:9.2f}"
