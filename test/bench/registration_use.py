# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What comes of registering without pinning: bandwidth of what is hot, memory that is pinned, the time to a first byte,
in a virtual host; and, natively on the loopback device, how much longer a program takes to start and to deregister
memory its peers have leased."""

import os
import statistics
import tempfile

import lending
import registration_guest
from bars import attempt, failure, scope
from native import Native, interval, ratio

FIRSTS = 3            # runs of each program
BUDGETS, SHORT_BUDGETS = ("16MiB", "256MiB", "auto"), ("16MiB",)
TURNS = 15            # of a stock and an adverb run of each program
BANDWIDTH = 0.9       # of stock's
STARTS = 61           # of a stock and an adverb program
START = 3.0           # ms
MIB = 1 << 20
TABLES = {
    "start": f"{'program start to end, ms, loopback device':46}{'stock':>9}{'adverb':>9}{'added':>7}"
             f"{'95% of it':>15}{'(CPU)':>7}",
    "dereg": lending.DEREG_HEADING,
    "memory": f"{'MiB, in a virtual host':62}{'stock':>9}{'adverb':>9}{'ratio':>7}",
    "first": "start to first byte, ms, in a virtual host, 1 GiB allowed; (span) and MiB pinned",
    "bandwidth": f"{'MiB/s, hot, in a virtual host':46}{'stock':>9}{'adverb':>9}{'ratio':>7}{'95% of it':>15}",
}


def of(lines, what, *rest):
    """What follows these words"""
    head = [what, *rest]
    return [line[len(head):] for line in lines if line[:len(head)] == head]


def missing(name):
    return RuntimeError(f"the guest has no figures of {name}")


def bandwidth_row(lines, program):
    runs = {whose: [float(words[0]) if words else None for words in of(lines, "bandwidth", program, whose)]
            for whose in ("stock", "adverb")}
    pairs = [pair for pair in zip(runs["stock"], runs["adverb"]) if None not in pair]
    if len(pairs) < TURNS:
        raise missing(program)
    return ratio(*zip(*pairs))


def receive_rows(lines, _):
    """Of 4,096 x 8 KiB posted: pinned and registered with the device, when they are posted and at most"""
    figures = {whose: [int(word) for words in of(lines, "receives", whose) for word in words]
               for whose in ("stock", "adverb")}
    if any(len(words) != 7 for words in figures.values()):
        raise missing("receives")
    for name, at, title in (("posted", 0, "pinned, when they are posted"), ("registered", 3, "registered, then"),
                            ("peak", 4, "pinned, at most")):
        stock, adverb = (figures[whose][at] / 1024 for whose in ("stock", "adverb"))
        yield {"name": f"receives_{name}", "table": "memory", "title": f"4,096 receives of 8 KiB: {title}",
               "stock": stock, "adverb": adverb, "value": round(adverb / stock, 3), "at_most": 1.0}


def budget_rows(lines, budgets):
    """Of both ends of a program that uses 128 MiB at each"""
    if any(not of(lines, "budget", name) for name in ("stock", *budgets)):
        raise missing("budgets")
    stock = [int(word) / 1024 for word in of(lines, "budget", "stock")[0]]
    for name in budgets:
        adverb = [int(word) / 1024 for word in of(lines, "budget", name)[0]]
        for at, what in enumerate(("pinned", "resident")):
            yield {"name": f"{what}_{name}", "table": "memory", "stock": stock[at], "adverb": adverb[at],
                   "title": f"ib_read_bw, 128 MiB an end, budget {name}: {what}",
                   "value": round(adverb[at] / stock[at], 3) if stock[at] else adverb[at]}


def first_rows(lines, _):
    for size in sorted({int(words[1]) for words in of(lines, "first")}):
        row = {"name": f"first_{size}", "table": "first", "title": f"{size / MIB:g} MiB registered"}
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


def start(programs, words):
    figures = [word / 1e6 for word in programs.run(False, STARTS, *words)]
    pairs = [figures[i:i + 4] for i in range(0, len(figures), 4)]
    added = sorted(adverb - stock for stock, adverb, _, _ in pairs)
    low, high = interval(added)
    return {"stock": statistics.median(pair[0] for pair in pairs), "adverb": statistics.median(pair[1] for pair in pairs),
            "processor": statistics.median(pair[3] - pair[2] for pair in pairs), "pairs": len(pairs),
            "value": round(statistics.median(added), 2), "low": round(low, 2), "high": round(high, 2)}


def start_rows(build):
    library, tool = (os.path.join(build, "preload", path) for path in ("libadverb.so", "tools/adverb"))
    programs = Native(build, "bench_start")
    ways = {"the default": ([f"LD_PRELOAD={library}", "ADVERB_POLICY=default"], START),
            "unpinned": ([f"LD_PRELOAD={library}", "ADVERB_POLICY=unpinned"], START),
            "unpinned, by `adverb run`": ([tool, "run", "--profile", "unpinned", "--"], None)}
    try:
        for name, (words, bar) in ways.items():
            yield attempt(lambda words=words: start(programs, words), name=f"start_{name}", table="start", title=name,
                          **({} if bar is None else {"at_most": bar}))
    finally:
        programs.close()


def dereg_rows(build):
    programs = Native(build, "bench_lending")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            yield from lending.dereg_rows(programs, lending.all_hot(scratch))
    finally:
        programs.close()


def guest_rows(build, options):
    firsts, turns = scope(options, 0, 1, FIRSTS), scope(options, 0, 0, TURNS)
    budgets = scope(options, (), SHORT_BUDGETS, BUDGETS)
    parts = {"receives": receive_rows, "first": first_rows, "budgets": budget_rows}
    for part, lines in registration_guest.by_the_clock(build, firsts, ",".join(budgets), turns):
        if part not in parts:
            yield attempt(lambda part=part, lines=lines: bandwidth_row(lines, part), name=part, table="bandwidth",
                          title=f"{part}, 64 KiB", at_least=BANDWIDTH)
            continue
        try:
            yield from parts[part](lines, budgets)
        except (RuntimeError, ValueError, IndexError) as error:
            yield {"name": part, **failure(error)}


def first_words(row, whose):
    if f"{whose}_failed" in row:
        return row[f"{whose}_failed"]
    shortest, longest = row[f"{whose}_span"]
    return f"{row[whose]:.0f} ({shortest:.0f}..{longest:.0f}), {row[f'{whose}_pinned']:.0f} pinned"


def line(row):
    stock_and_adverb = "".join(f"{row.get(whose, 0):9.2f}" for whose in ("stock", "adverb"))
    if row["table"] == "start":
        return (f"{row['title']:46}{stock_and_adverb}{row['value']:7.2f}{row['low']:8.2f} ..{row['high']:5.2f}"
                f"{row['processor']:7.2f}")
    if row["table"] == "dereg":
        return lending.dereg_line(row)
    if row["table"] == "bandwidth":
        return f"{row['title']:46}{stock_and_adverb}{row['value']:7.2f}{row['low']:8.2f} ..{row['high']:5.2f}"
    if row["table"] == "memory":
        return f"{row['title']:62}{stock_and_adverb}{row['value']:7.2f}"
    return "{:46}stock {}; adverb {}".format(row["title"], *(first_words(row, whose) for whose in ("stock", "adverb")))
