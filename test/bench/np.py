# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""READs of memory that nobody has pinned, by the NIC through adverb.ko, beside READs of pinned memory by the same NIC:
a soft RNIC in a virtual host (test/vm/rxe). And, natively, the check of what such a READ has brought beside memcmp(3).
Times under emulation are good as ratios only."""

import json
import os
import subprocess

import guest
from bars import PAIRS, attempt, scope
from native import TARGETS as NATIVE_TARGETS, ratio, ratio_heading, ratio_line

TARGETS = [*{*guest.TARGETS, *NATIVE_TARGETS}, "kernel/built-6.12", "test/bench/bench_np", "test/bench/bench_landing"]
WITHOUT_COUNTS = "it times READs, and its counts are of what is timed"
READS, SHORT_READS = 2000, 400  # of a run; without --long
MISSES, REGISTRATIONS = 100, 15
# As test/kernel/np_programs.sh.
VM = ("--nodes", "2", "--swap", "1024", "--mem", "2560", "--device", "edu", "--timeout", "900")
LATENCY, RATE = 1.10, 1 / 0.95   # times as long as of pinned memory
MISS = 3.0                       # times as long as a READ of a page that is there
FLAT = 1.2                       # 64 GiB beside 1 GiB
CHECK = 1 / 0.5                  # times as long as memcmp
CHECKED = (4 << 10, 64 << 10, 1 << 20)  # bytes
TABLES = {
    "read": ratio_heading("READs by the soft RNIC, microseconds", "pinned"),
    "messages": f"{'what the library counted meanwhile':60}{'READs':>10}{'of them':>10}",
    "miss": f"{'READs of 4 KiB, microseconds, medians':60}{'there':>10}{'away':>10}{'ratio':>7}",
    "register": f"{'ibv_reg_mr, microseconds, medians':60}{'1 GiB':>10}{'64 GiB':>10}{'ratio':>7}",
    "check": ratio_heading("the check, in this host, nanoseconds", "memcmp"),
}


def guest_lines(build, reads):
    """(part, {(what, whose): {figure: [values]}}, {what: [(counters before, after)]}) as each part of the guest ends"""
    figures, counters = {}, {}
    for line in guest.lines(build, *VM, "--", f"test/bench/np_guest.sh {reads} {MISSES} {REGISTRATIONS} {PAIRS}"):
        words = line.split()
        if words[:1] == ["end"]:
            yield words[1], figures, counters
        elif words[:1] == ["counters"]:
            before, after = map(json.loads, words[2:4])
            counters.setdefault(words[1], []).append((before, after))
        elif len(words) >= 4 and words[1] in ("stock", "adverb"):
            figures.setdefault((words[0], words[1]), {}).setdefault(" ".join(words[2:-1]), []).append(float(words[-1]))


def read_ratio(figures, name):
    stock, adverb = (figures["read", whose][name] for whose in ("stock", "adverb"))
    if len(stock) != PAIRS or len(adverb) != PAIRS:
        raise RuntimeError(f"{len(stock)} and {len(adverb)} runs have told of {name}, not {PAIRS}")
    return ratio(stock, adverb)


def counted(counters, what, name):
    """The largest of all runs, and of how many READs by views"""
    runs = counters[what]
    of = [after["posts_np_read"] - before["posts_np_read"] for before, after in runs]
    if min(of) == 0:
        raise RuntimeError("no READ went by a view")
    return {"value": max(after[name] - before[name] for before, after in runs), "of": max(of)}


def miss(figures, away):
    times = {name: values[0] for name, values in figures["miss", "adverb"].items()}
    return {"there": times["resident"], "away": times[away], "value": round(times[away] / times["resident"], 2)}


def flat(figures):
    one, most = (figures["register", "adverb"][f"register {gib}"][0] for gib in (1, 64))
    return {"there": one, "away": most, "value": round(most / one, 2)}


def check(build, size):
    done = subprocess.run([os.path.join(build, "test/bench/bench_landing"), str(size), str(PAIRS)], check=True,
                          capture_output=True, text=True)
    turns = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    return ratio([memcmp for memcmp, _ in turns], [checked for _, checked in turns])


def part_rows(part, figures, counters):
    if part == "read":
        for name, title, bar in (("latency", "4 KiB, one at a time", LATENCY), ("rate", "64 KiB, 16 outstanding", RATE)):
            yield attempt(lambda name=name: read_ratio(figures, name), name=name, title=title, table="read",
                          at_most=round(bar, 3))
        for name, title in (("link_messages", "messages"), ("posts_unload", "READs by the peer's CPU")):
            yield attempt(lambda name=name: counted(counters, "read", name), name=name, title=title, table="messages",
                          at_most=0)
    elif part == "miss":
        yield attempt(lambda: counted(counters, "miss", "reads_missed"), name="missed", title="met a page that was away",
                      table="messages", at_least=2 * MISSES)
        for away, title in (("dropped", "a page that was given back, and reads as zeros"), ("swapped", "a page in swap")):
            yield attempt(lambda away=away: miss(figures, away), name=f"miss_{away}", title=title, table="miss",
                          at_most=MISS)
    elif part == "register":
        yield attempt(lambda: flat(figures), name="register_flat", title="under np", table="register", at_most=FLAT)


def run(build, options):
    for size in CHECKED:
        yield attempt(lambda size=size: check(build, size), name=f"check_{size}", title=f"{size >> 10} KiB", table="check",
                      at_most=CHECK)
    for part, figures, counters in guest_lines(build, scope(options, None, SHORT_READS, READS)):
        yield from part_rows(part, figures, counters)


def line(row):
    if row["table"] == "check":
        return ratio_line(row, 1)
    if row["table"] == "read":
        return ratio_line(row)
    if row["table"] == "messages":
        return f"{row['title']:60}{row['of']:10}{row['value']:10}"
    return f"{row['title']:60}{row['there'] / 1000:10.1f}{row['away'] / 1000:10.1f}{row['value']:7.2f}"
