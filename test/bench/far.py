# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A copy over a far and lossy link between two virtual hosts with soft-RoCE: adverb.h beside stock RC, by
examples/far-copy, messages of 4 MiB, 16 under way. Beside both: raw, the same bytes in SENDs that nobody repairs, which
is the ceiling. Losses are those of each direction."""

import statistics

import guest
import native
from bars import PAIRS

TARGETS = [*guest.TARGETS, "examples/far-copy/far-copy"]
WITHOUT_COUNTS = "it times copies"
# (MTU of the Ethernet link, delay each way, loss each way in percent, MiB, bar: stock's time by adverb's)
LONG = [("1500", "12.5ms", "0.5", 8, 2), ("1500", "50ms", "0.5", 8, 5), ("4200", "12.5ms", "0.5", 16, 2),
        ("4200", "50ms", "0.5", 16, 5), ("1500", "0", "0", 8, None), ("4200", "0", "0", 16, None)]
SHORT = LONG[:2]
LONGEST = 3600  # s: whoever takes longer hangs
TABLES = {"far": f"{'MB/s, medians, two virtual hosts':48}{'stock':>10}{'adverb':>10}{'ratio':>7}{'95% of it':>15}"
                 f"{'raw':>10}"}


def title(mtu, delay, loss):
    payload = {"1500": 1024, "4200": 4096}[mtu]
    return f"MTU {payload}, " + (f"delay {delay}, loss {loss}% each way" if delay != "0" else "no delay, no loss")


def copies(build, pairs, points):
    """{kind: {way: MB/s of each pair}} as it grows, whenever a kind is whole"""
    kinds = [",".join(map(str, point[:4])) for point in points]
    found = {kind: {"auto": [], "rc": [], "raw": []} for kind in kinds}
    for line in guest.lines(build, "--hosts", "2", "--timeout", str(LONGEST), "--",
                            f"test/bench/far_guest.sh {pairs} {' '.join(kinds)}"):
        words = line.split()
        if "far" not in words:
            continue
        kind, _, way, _, rate, *_, last = words[words.index("far") + 1:]
        if way != "raw" and last != "same":
            raise RuntimeError(f"{way} has brought other bytes: {line}")
        found[kind][way].append(float(rate))
        if all(len(rates) == pairs for rates in found[kind].values()):
            yield kind, found[kind]


def run(build, options):
    points = LONG if options.long else SHORT
    rest = {",".join(map(str, point[:4])): point for point in points}
    for kind, rates in copies(build, PAIRS, points):
        mtu, delay, loss, _, bar = rest.pop(kind)
        ratios = sorted(ours / stock for ours, stock in zip(rates["auto"], rates["rc"]))
        low, high = native.interval(ratios)
        yield {"name": title(mtu, delay, loss), "title": title(mtu, delay, loss), "table": "far",
               "value": round(statistics.median(ratios), 3), "low": round(low, 3), "high": round(high, 3),
               "pairs": len(ratios), "stock": statistics.median(rates["rc"]), "adverb": statistics.median(rates["auto"]),
               "raw": statistics.median(rates["raw"]), **({} if bar is None else {"at_least": bar})}
    for mtu, delay, loss, *_ in rest.values():
        yield {"name": title(mtu, delay, loss), "table": "far", "value": None, "failed": "the hosts have ended early"}


def line(row):
    return (f"{row['title']:48}{row['stock']:10.2f}{row['adverb']:10.2f}{row['value']:7.2f}{row['low']:8.2f} .."
            f"{row['high']:5.2f}{row['raw']:10.2f}")
