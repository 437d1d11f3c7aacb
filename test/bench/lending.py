# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What is hot, reached by the device, and what is cold, by the owner's CPU: a table larger than the budget, beside a
program that knew beforehand what would be hot, natively on the loopback device. And what a lease costs whoever
unmaps its memory."""

import glob
import json
import os
import tempfile

from native import Native, paired

TABLE = 160 << 20
HOT = TABLE // 10        # the budget, too
COUNT = 60000            # requests of a run that is timed, after as many to warm up
HIT_COUNT = 200000       # of one whose hits are counted, from the first on
UNMAPS = 1000
SKEWS = ("zipf", "100", "99", "90", "50", "0")
DEREGS = 50
SIZES = (8, 4096, 65536, 1 << 20, 8 << 20)
LATENCY = 1.10           # times as long as stock where all is hot, one outstanding
RATE = 1 / 0.95          # and sixteen
BESIDE = 1 / 0.7         # times as long as the program that knew
OF_BEST = 1 / 0.9        # hits that a cache that knows the future has, for each


def policy(scratch, name, cold):
    """Leases have half of the budget. Buffers, and what the other program knows to be hot, are pinned."""
    path = os.path.join(scratch, name + ".json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"version": 1, "pinned_budget": f"{2 * HOT >> 20}MiB",
                   "rules": [{"match": {"max_size": f"{HOT >> 20}MiB"}, "register": "pinned"}, {"register": cold}]}, file)
    return path


def counted(native, scratch, path, words):
    """{counter: of both processes}"""
    native.run(True, *words, ADVERB_STATS_FILE=os.path.join(scratch, "stats.%p"), ADVERB_POLICY=path)
    totals = {}
    for file_path in glob.glob(os.path.join(scratch, "stats.*")):
        with open(file_path, encoding="utf-8") as file:
            for name, value in json.load(file)["counters"].items():
                totals[name] = totals.get(name, 0) + value
        os.unlink(file_path)
    return totals


def hit_rows(native, scratch, elastic):
    for lie in ("clustered", "scattered"):
        for skew in ("zipf", "90"):
            def words(what, count, lie=lie, skew=skew):
                return what, "read", 16, count, TABLE, HOT, lie, skew
            # Hits of the two readings of the whole table before fall out of the difference.
            less, more = (counted(native, scratch, elastic, words("one", n)) for n in (1, HIT_COUNT // 2))
            hits = sum(more[name] - less.get(name, 0) for name in ("posts_leased", "posts_leased_along")) / HIT_COUNT
            best = native.run(False, *words("best", HIT_COUNT // 2))[0]
            row = {"name": f"hits_{lie}_{skew}", "title": f"{skew}, {lie}", "hits": round(hits, 3), "best": best,
                   "value": round(best / max(hits, 1e-9), 3)}
            # A part of 64 KiB has 16 slots: where chance lays the hot ones, parts differ by little.
            yield row | ({} if lie == "scattered" else {"bar": round(OF_BEST, 3)})


def time_rows(native, elastic, known):
    for operation in ("read", "write"):
        for outstanding in (1, 16):
            for skew in SKEWS:
                def run(what, path, words=(operation, outstanding, COUNT, TABLE, HOT, "clustered", skew)):
                    return native.run(True, what, *words, ADVERB_POLICY=path)[0]
                row = paired(lambda run=run: run("two", known), lambda run=run: run("one", elastic), BESIDE)
                yield {"name": f"{operation}_x{outstanding}_{skew}",
                       "title": f"{operation.upper()} of 4 KiB, {outstanding} outstanding, {skew}", **row}


def all_hot(scratch):
    """Nothing is pinned for the programs, at either end."""
    path = os.path.join(scratch, "hot.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"version": 1, "pinned_budget": "64MiB", "rules": [{"register": "elastic"}]}, file)
    return path


def hot_rows(native, path):
    """Latency with one outstanding, rate of small ones and bandwidth of large ones with sixteen"""
    for operation, sizes in (("read", SIZES), ("write", SIZES), ("send", SIZES), ("atomic", (8,))):
        for size in sizes:
            for outstanding in (1, 16):
                words = operation, size, outstanding, max(60, min(40000, (1 << 30) // size))
                row = paired(lambda words=words: native.run(False, "hot", *words)[0],
                             lambda words=words: native.run(True, "hot", *words, ADVERB_POLICY=path)[0],
                             LATENCY if outstanding == 1 else RATE)
                yield {"name": f"hot_{operation}_{size}_x{outstanding}",
                       "title": f"{operation.upper()} of {size} bytes, {outstanding} outstanding", **row}


def dereg_rows(native, path):
    adverb = native.run(True, "dereg", DEREGS, ADVERB_POLICY=path)
    stock = native.run(False, "dereg", DEREGS)
    yield {"name": "dereg_leased", "title": "ibv_dereg_mr, 256 parts leased, us", "stock": stock[0],
           "median": adverb[0], "value": adverb[1], "bar": 5e6}


def unmap_rows(native, elastic):
    idle, busy = (native.run(True, "unmap", UNMAPS, holder, ADVERB_POLICY=elastic) for holder in ("idle", "busy"))
    stock = native.run(False, "unmap", UNMAPS, "idle")
    for name, title, at, bar in (("unmap_median", "the median", 0, 200e3), ("unmap_p99", "the 99th percentile", 1, 2e6),
                                 ("unmap_unread", "the median of what nobody has read", 2, None)):
        row = {"name": name, "title": title, "value": idle[at], "busy": busy[at], "stock": stock[at]}
        yield row | ({} if bar is None else {"bar": bar})


def run(build):
    native = Native(build, "bench_lending")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            elastic, known = policy(scratch, "elastic", "elastic"), policy(scratch, "known", "none")
            return [*hit_rows(native, scratch, elastic), *unmap_rows(native, elastic),
                    *dereg_rows(native, all_hot(scratch)), *time_rows(native, elastic, known),
                    *hot_rows(native, all_hot(scratch))]
    finally:
        native.close()


def show(rows):
    print(f"A table of {TABLE >> 20} MiB, of which {HOT >> 20} MiB may be leased")
    print(f"{'requests by the device, of all':40}{'adverb':>8}{'best':>8}{'best/adverb':>12}{'bar':>7}")
    for r in (r for r in rows if "hits" in r):
        print(f"{r['title']:40}{r['hits']:8.3f}{r['best']:8.3f}{r['value']:12.2f}{r.get('bar', '-'):>7}")
    print(f"{'64 KiB given back to the kernel, us':40}{'stock':>8}{'leased':>8}{'in use':>8}{'bar':>7}")
    for r in (r for r in rows if "busy" in r):
        bar = f"{r['bar'] / 1000:7.0f}" if "bar" in r else "      -"
        print(f"{r['title']:40}{r['stock'] / 1000:8.1f}{r['value'] / 1000:8.1f}{r['busy'] / 1000:8.1f}{bar}")
    for r in (r for r in rows if r["name"] == "dereg_leased"):
        print(f"{r['title']:40}{r['stock'] / 1000:8.1f}{r['median'] / 1000:8.1f}{r['value'] / 1000:8.1f}"
              f"{r['bar'] / 1000:7.0f} (stock; median and longest)")
    for r in (r for r in rows if "ratio" in r):
        if r["name"] in ("read_x1_zipf", "hot_read_8_x1"):
            beside = "known" if r["name"] == "read_x1_zipf" else "stock"
            print(f"{'microseconds per request':46}{beside:>9}{'adverb':>9}{'ratio':>7}{'95% of it':>15}{'bar':>7}")
        print(f"{r['title']:46}{r['stock'] / 1000:9.2f}{r['adverb'] / 1000:9.2f}{r['ratio']:7.2f}"
              f"{r['low']:8.2f} ..{r['high']:5.2f}{r['bar']:7.2f} {r['verdict']}")
