# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What comes of registering without pinning: bandwidth of what is hot, memory that is pinned, the time to a first byte,
in a virtual host; and, natively on the loopback device, how much longer a program takes to start and to deregister
memory its peers have leased."""

import os
import statistics
import tempfile

import lending
import registration_guest
from native import Native, interval, verdict

TURNS = 6             # of a stock and an adverb run of each program: the interval is all of them
BANDWIDTH = 1 / 0.9   # stock's, in adverb's
STARTS = 61           # of a stock and an adverb program
START = 3.0           # ms
MIB = 1 << 20


def of(lines, what, *rest):
    """What follows these words"""
    head = [what, *rest]
    return [line[len(head):] for line in lines if line[:len(head)] == head]


def missing(name):
    return RuntimeError(f"the guest has no figures of {name}")


def bandwidth_rows(lines):
    for program in ("ib_write_bw", "ib_read_bw", "ib_send_bw"):
        runs = {whose: [float(words[0]) if words else None for words in of(lines, "bandwidth", program, whose)]
                for whose in ("stock", "adverb")}
        pairs = [pair for pair in zip(runs["stock"], runs["adverb"]) if None not in pair]
        if len(pairs) < TURNS - 1:
            raise missing(program)
        low, high = interval(sorted(stock / adverb for stock, adverb in pairs))
        yield {"name": program, "part": "use", "table": "bandwidth", "title": f"{program}, 64 KiB",
               "stock": statistics.median(stock for stock, _ in pairs),
               "adverb": statistics.median(adverb for _, adverb in pairs),
               "ratio": round(statistics.median(adverb / stock for stock, adverb in pairs), 3),
               "low": round(1 / high, 3), "high": round(1 / low, 3), "value": round(low, 3),
               "bar": round(BANDWIDTH, 3), "verdict": verdict(low, high, BANDWIDTH)}


def receive_rows(lines):
    """Of 4,096 x 8 KiB posted: pinned and registered with the device, when they are posted and at most"""
    figures = {whose: [int(word) for words in of(lines, "receives", whose) for word in words]
               for whose in ("stock", "adverb")}
    if any(len(words) != 7 for words in figures.values()):
        raise missing("receives")
    for name, at, title in (("posted", 0, "pinned, when they are posted"), ("registered", 3, "registered, then"),
                            ("peak", 4, "pinned, at most")):
        stock, adverb = (figures[whose][at] / 1024 for whose in ("stock", "adverb"))
        yield {"name": f"receives_{name}", "part": "use", "table": "memory", "title": f"4,096 receives of 8 KiB: {title}",
               "stock": stock, "adverb": adverb, "value": round(adverb / stock, 3), "bar": 1.0}


def budget_rows(lines):
    """Of both ends of a program that uses 128 MiB at each"""
    if any(not of(lines, "budget", name) for name in ("stock", "16MiB", "256MiB", "auto")):
        raise missing("budgets")
    stock = [int(word) / 1024 for word in of(lines, "budget", "stock")[0]]
    for name in ("16MiB", "256MiB", "auto"):
        adverb = [int(word) / 1024 for word in of(lines, "budget", name)[0]]
        for at, what in enumerate(("pinned", "locked", "resident")):
            yield {"name": f"{what}_{name}", "part": "use", "table": "memory", "stock": stock[at], "adverb": adverb[at],
                   "title": f"ib_read_bw, 128 MiB an end, budget {name}: {what}",
                   "value": round(adverb[at] / stock[at], 3) if stock[at] else adverb[at]}


def first_rows(lines):
    for size in sorted({int(words[1]) for words in of(lines, "first")}):
        row = {"name": f"first_{size}", "part": "use", "table": "first", "title": f"{size / MIB:g} MiB registered"}
        for whose in ("stock", "adverb"):
            runs = of(lines, "first", whose, str(size))
            done = [words for words in runs if words[0] != "failed"]
            if done:
                times = sorted(int(words[0]) / 1e6 for words in done)
                row[whose] = statistics.median(times)
                row[f"{whose}_span"] = [times[0], times[-1]]
                row[f"{whose}_pinned"] = max(int(words[1]) for words in done) / 1024
            else:
                row[f"{whose}_failed"] = f"ends with status {runs[0][1]} after {int(runs[0][2]) / 1e9:.1f} s"
        if "adverb" not in row:
            raise missing(f"the first byte: {row['adverb_failed']}")
        yield row | {"value": round(row["adverb"], 1)}


def start_rows(build):
    library, tool = (os.path.join(build, "preload", path) for path in ("libadverb.so", "tools/adverb"))
    native = Native(build, "bench_start")
    ways = {"the default": ([f"LD_PRELOAD={library}", "ADVERB_POLICY=default"], START),
            "unpinned": ([f"LD_PRELOAD={library}", "ADVERB_POLICY=unpinned"], START),
            "unpinned, by `adverb run`": ([tool, "run", "--profile", "unpinned", "--"], None)}
    try:
        for name, (words, bar) in ways.items():
            figures = [word / 1e6 for word in native.run(False, STARTS, *words)]
            pairs = [figures[i:i + 4] for i in range(0, len(figures), 4)]
            added = sorted(adverb - stock for stock, adverb, _, _ in pairs)
            low, high = interval(added)
            row = {"name": f"start_{name}", "part": "use", "table": "start", "title": name,
                   "stock": statistics.median(pair[0] for pair in pairs),
                   "adverb": statistics.median(pair[1] for pair in pairs),
                   "processor": statistics.median(pair[3] - pair[2] for pair in pairs),
                   "added": round(statistics.median(added), 2), "low": round(low, 2), "high": round(high, 2),
                   "value": round(low, 2)}
            yield row | ({} if bar is None else {"bar": bar, "verdict": verdict(low, high, bar)})
    finally:
        native.close()


def dereg_rows(build):
    native = Native(build, "bench_lending")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            for row in lending.dereg_rows(native, lending.all_hot(scratch)):
                yield row | {"part": "use", "table": "dereg"}
    finally:
        native.close()


def rows(build):
    registration_guest.progress("starts, and leases, on this machine")
    yield from start_rows(build)
    yield from dereg_rows(build)
    lines = registration_guest.by_the_clock(build, TURNS)
    for part in (bandwidth_rows, receive_rows, first_rows, budget_rows):
        yield from part(lines)


def show(found):
    def table(name):
        return [r for r in found if r["table"] == name]

    print(f"{'program start to end, ms, loopback device':46}{'stock':>9}{'adverb':>9}{'added':>7}{'95% of it':>15}{'(CPU)':>7}{'bar':>6}")
    for r in table("start"):
        judged = f"{r['bar']:6.2f} {r['verdict']}" if "bar" in r else "     -"
        print(f"{r['title']:46}{r['stock']:9.2f}{r['adverb']:9.2f}{r['added']:7.2f}{r['low']:8.2f} ..{r['high']:5.2f}"
              f"{r['processor']:7.2f}{judged}")
    for r in table("dereg"):
        print(f"{r['title']}: stock {r['stock'] / 1000:.1f}, median {r['median'] / 1000:.1f}, longest {r['value'] / 1000:.1f}, "
              f"bar {r['bar'] / 1000:.0f}")
    print(f"{'MiB/s, hot, in a virtual host':46}{'stock':>9}{'adverb':>9}{'ratio':>7}{'95% of it':>15}{'at least':>10}")
    for r in table("bandwidth"):
        print(f"{r['title']:46}{r['stock']:9.2f}{r['adverb']:9.2f}{r['ratio']:7.2f}{r['low']:8.2f} ..{r['high']:5.2f}"
              f"{1 / r['bar']:10.2f} {r['verdict']}")
    print(f"{'start to first byte, ms, in a virtual host, 1 GiB allowed; (span) and MiB pinned':46}")
    for r in table("first"):
        cells = (r.get(f"{whose}_failed") or f"{r[whose]:.0f} ({r[f'{whose}_span'][0]:.0f}..{r[f'{whose}_span'][1]:.0f}), "
                 f"{r[f'{whose}_pinned']:.0f} pinned" for whose in ("stock", "adverb"))
        print("{:46}stock {}; adverb {}".format(r["title"], *cells))
    print(f"{'MiB, in a virtual host':62}{'stock':>9}{'adverb':>9}{'ratio':>7}{'bar':>6}")
    for r in table("memory"):
        print(f"{r['title']:62}{r['stock']:9.1f}{r['adverb']:9.1f}{r['value']:7.2f}{r.get('bar', '-'):>6}")
