# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What is hot, reached by the device, and what is cold, by the owner's CPU: a table larger than the budget, beside a
program that knew beforehand what would be hot, natively on the loopback device. And what a lease costs whoever
unmaps its memory."""

import itertools
import json
import os
import tempfile

import native
from bars import attempt

TARGETS = [*native.TARGETS, "test/bench/bench_lending"]
TABLE = 160 << 20
HOT = TABLE // 10        # the budget, too
COUNT = 60000            # requests of a run that is timed, after as many to warm up
SHORT_COUNT = 10000      # without --long
HIT_COUNT = 200000       # of one whose hits are counted, from the first on
UNMAPS = 1000
SKEWS = ("zipf", "100", "99", "90", "50", "0")
DEREGS = 50
SIZES = (8, 4096, 65536, 1 << 20, 8 << 20)
SHORT_SIZES = (8, 65536) # without --long
LATENCY = 1.10           # times as long as stock where all is hot, one outstanding
RATE = 1 / 0.95          # and sixteen
BESIDE = 1 / 0.7         # times as long as the program that knew
LEASED = ("posts_leased", "posts_leased_along")
OF_BEST = 1 / 0.9        # hits that a cache that knows the future has, for each
DEREG_HEADING = f"{'microseconds':40}{'stock':>12}{'median':>12}{'longest':>12}"
TABLES = {
    "hits": f"A table of {TABLE >> 20} MiB, of which {HOT >> 20} MiB may be leased\n"
            f"{'requests by the device, of all':40}{'adverb':>8}{'best':>8}{'best/adverb':>12}",
    "unmap": f"{'64 KiB given back to the kernel, us':40}{'stock':>8}{'leased':>8}{'in use':>8}",
    "dereg": DEREG_HEADING,
    "known": native.ratio_heading("microseconds per request", "known"),
    "hot": native.ratio_heading("microseconds per request, all of it hot"),
}


def policy(scratch, name, cold):
    """Leases have half of the budget. Buffers, and what the other program knows to be hot, are pinned."""
    path = os.path.join(scratch, name + ".json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"version": 1, "pinned_budget": f"{2 * HOT >> 20}MiB",
                   "rules": [{"match": {"max_size": f"{HOT >> 20}MiB"}, "register": "pinned"}, {"register": cold}]}, file)
    return path


def hit_rows(programs, elastic):
    for lie in ("clustered", "scattered"):
        for skew in ("zipf", "90"):
            def words(what, count, lie=lie, skew=skew):
                return what, "read", 16, count, TABLE, HOT, lie, skew

            def hits(words=words):
                # Hits of the two readings of the whole table before fall out of the difference.
                less, more = (programs.counters(*words("one", n), ADVERB_POLICY=elastic) for n in (1, HIT_COUNT // 2))
                if not more.get("posts_leased"):
                    raise RuntimeError("no request went to leased memory")
                share = sum(more.get(name, 0) - less.get(name, 0) for name in LEASED) / HIT_COUNT
                best = programs.run(False, *words("best", HIT_COUNT // 2))[0]
                return {"hits": round(share, 3), "best": best, "value": round(best / share, 3)}
            # A part of 64 KiB has 16 slots: where chance lays the hot ones, parts differ by little.
            yield attempt(hits, name=f"hits_{lie}_{skew}", table="hits", title=f"{skew}, {lie}",
                          **({} if lie == "scattered" else {"at_most": round(OF_BEST, 3)}))


def time_rows(programs, elastic, known, options):
    mixtures, count = [("read", 1, "zipf"), ("write", 16, "zipf")], SHORT_COUNT
    if options.long:
        mixtures, count = itertools.product(("read", "write"), (1, 16), SKEWS), COUNT
    for operation, outstanding, skew in mixtures:
        def run_one(what, path, words=(operation, outstanding, count, TABLE, HOT, "clustered", skew)):
            return programs.run(True, what, *words, ADVERB_POLICY=path)[0]
        yield attempt(lambda run_one=run_one: native.paired(lambda: run_one("two", known),
                                                            lambda: run_one("one", elastic)),
                      name=f"{operation}_x{outstanding}_{skew}", table="known", at_most=round(BESIDE, 3),
                      title=f"{operation.upper()} of 4 KiB, {outstanding} outstanding, {skew}")


def all_hot(scratch):
    """Nothing is pinned for the programs, at either end."""
    path = os.path.join(scratch, "hot.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"version": 1, "pinned_budget": "64MiB", "rules": [{"register": "elastic"}]}, file)
    return path


def hot_rows(programs, path, options):
    """Latency with one outstanding, rate of small ones and bandwidth of large ones with sixteen"""
    sizes = SIZES if options.long else SHORT_SIZES
    for operation, sizes_of in (("read", sizes), ("write", sizes), ("send", sizes), ("atomic", (8,))):
        for size in sizes_of:
            for outstanding in (1, 16):
                words = operation, size, outstanding, max(60, min(40000, (1 << 30) // size))
                yield attempt(lambda words=words: native.paired(
                                  lambda: programs.run(False, "hot", *words)[0],
                                  lambda: programs.run(True, "hot", *words, ADVERB_POLICY=path)[0]),
                              name=f"hot_{operation}_{size}_x{outstanding}", table="hot",
                              title=f"{operation.upper()} of {size} bytes, {outstanding} outstanding",
                              at_most=round(LATENCY if outstanding == 1 else RATE, 3))


def dereg_rows(programs, path):
    def dereg():
        adverb = programs.run(True, "dereg", DEREGS, ADVERB_POLICY=path)
        stock = programs.run(False, "dereg", DEREGS)
        return {"stock": stock[0] / 1000, "median": adverb[0] / 1000, "value": adverb[1] / 1000}
    yield attempt(dereg, name="dereg_leased", table="dereg", title="ibv_dereg_mr, 256 parts leased", at_most=5000)


def unmap_rows(programs, elastic):
    """Microseconds"""
    runs = {}

    def unmap(adverb, holder):
        if (adverb, holder) not in runs:
            runs[adverb, holder] = [took / 1000 for took in programs.run(adverb, "unmap", UNMAPS, holder,
                                                                         ADVERB_POLICY=elastic)]
        return runs[adverb, holder]
    for name, title, at, bar in (("unmap_median", "the median", 0, 200), ("unmap_p99", "the 99th percentile", 1, 2000),
                                 ("unmap_unread", "the median of what nobody has read", 2, None)):
        yield attempt(lambda at=at: {"value": unmap(True, "idle")[at], "busy": unmap(True, "busy")[at],
                                     "stock": unmap(False, "idle")[at]},
                      name=name, table="unmap", title=title, **({} if bar is None else {"at_most": bar}))


def run(build, options):
    programs = native.Native(build, "bench_lending")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            elastic, known = policy(scratch, "elastic", "elastic"), policy(scratch, "known", "none")
            yield from hit_rows(programs, elastic)
            if options.quick:
                return
            yield from unmap_rows(programs, elastic)
            yield from dereg_rows(programs, all_hot(scratch))
            yield from time_rows(programs, elastic, known, options)
            yield from hot_rows(programs, all_hot(scratch), options)
    finally:
        programs.close()


def dereg_line(row):
    return f"{row['title']:40}" + "".join(f"{row[key]:12.1f}" for key in ("stock", "median", "value"))


def line(row):
    if row["table"] == "hits":
        return f"{row['title']:40}{row['hits']:8.3f}{row['best']:8.3f}{row['value']:12.2f}"
    if row["table"] == "unmap":
        return f"{row['title']:40}{row['stock']:8.1f}{row['value']:8.1f}{row['busy']:8.1f}"
    return dereg_line(row) if row["table"] == "dereg" else native.ratio_line(row)
