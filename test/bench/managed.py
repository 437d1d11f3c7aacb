# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a managed queue pair pays from post to poll: instructions between two Worlds."""

import os

from callgrind import instructions

ROUNDS = 1000  # as managed.cpp
# (case, the stock one beside it, requests of a post, bar for each request, title)
CASES = [
    ("write_pinned", "write_stock", 1, 150, "WRITE of 64 B, both sides pinned"),
    ("write_list_pinned", "write_list_stock", 8, 150, "of a list of 8 of them, each"),
    ("send_pinned", "send_stock", 1, 150, "SEND of 64 B, both sides pinned"),
    ("write_staged", "write_stock", 1, 350, "WRITE of 64 B, source unpinned: staged"),
    ("write_windowed", "write_large_stock", 1, 350, "WRITE of 16 KiB, source unpinned: in a window"),
]


def run(build):
    counts = instructions(os.path.join(build, "test/bench/bench_managed"), collect_at_start=False)
    rows = []
    for name, beside, requests, bar, title in CASES:
        stock, adverb = (counts[n] / ROUNDS / requests for n in (beside, name))
        rows.append({"name": f"{name}_instructions_added", "title": title, "stock": round(stock, 1),
                     "adverb": round(adverb, 1), "value": round(adverb - stock, 1), "bar": bar})
    return rows


def show(rows):
    print("A managed queue pair's request, from post to poll, over a provider that is a table of functions")
    print(f"{'instructions':50}{'stock':>8}{'adverb':>8}{'added':>8}{'bar':>8}")
    for r in rows:
        print(f"{r['title']:50}{r['stock']:8.1f}{r['adverb']:8.1f}{r['value']:8.1f}{r['bar']:8}")
