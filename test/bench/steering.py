# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""WRITEs to pinned memory, carried by the device, by the owner's CPU, or as adverb steers them by measurement.

The loopback device models translation misses (test/loopback/README.md): it keeps 1,024 pages, and a miss costs it
3 us, about as long as such a WRITE takes without one. All runs are under adverb; the policies differ in `steer` alone.
Two processes want two processors."""

import json
import os
import statistics
import tempfile

import native
from bars import PAIRS, attempt

TARGETS = [*native.TARGETS, "test/bench/bench_steering"]
WITHOUT_COUNTS = "it times requests"
MODEL = "entries=1024,ways=8,page=4096,penalty=3us"
COUNT = 40960  # requests of a run that are timed; as many go before
POLICIES = ("offload", "unload", "auto")
INSIDE, OUTSIDE, HOT = 512, 65536, 32  # pages
# (title, bytes, requests of a list, pages, hot pages, percent to hot ones, order, bars)
POINTS = [
    ("64 B, lists of 32, all cached", 64, 32, INSIDE, HOT, 0, "strict", {"at_most": 1.05}),
    ("64 B, lists of 32, 64 times the cache", 64, 32, OUTSIDE, HOT, 0, "strict", {"at_most": 1.05, "faster": 1.31}),
    ("64 B, lists of 32, half to hot pages", 64, 32, OUTSIDE, HOT, 50, "relaxed", {"at_most": 1.05}),
    ("1 KiB, lists of 32, all cached", 1024, 32, INSIDE, HOT, 0, "strict", {"at_most": 1.05}),
    ("1 KiB, lists of 32, 64 times the cache", 1024, 32, OUTSIDE, HOT, 0, "strict", {"at_most": 1.05}),
    ("64 B, one at a time, all cached", 64, 1, INSIDE, HOT, 0, "strict", {"at_most": 1.05}),
    ("64 B, one at a time, 64 times the cache", 64, 1, OUTSIDE, HOT, 0, "strict", {"at_most": 1.05}),
]
# A WRITE and the SEND that tells of it: by the NIC, as under stock.
AND_A_SEND = [(64, 1), (1024, 1), (64, 8)]  # bytes, requests of a list
TABLES = {"send": f"{'WRITEs and a SEND, microseconds per WRITE':44}{'stock':>9}{'auto':>9}{'auto by stock':>20}{'95% of it':>16}",
          "time": f"{'microseconds per WRITE, medians':44}{'offload':>9}{'unload':>9}{'auto':>9}{'auto by the better':>20}"
                  f"{'95% of it':>16}{'offload by auto':>17}"}


def policy(scratch, steer, order):
    path = os.path.join(scratch, f"{steer}-{order}.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"version": 1, "rules": [{"register": "pinned", "order": order},
                                           {"match": {"opcode": "write"}, "steer": steer}]}, file)
    return path


def times(programs, scratch, point):
    _, size, many, pages, hot, percent, order, bars = point
    found = {steer: [] for steer in POLICIES}
    for _ in range(PAIRS):
        for steer in POLICIES:
            found[steer].append(programs.run(True, size, many, pages, hot, percent, COUNT,
                                             ADVERB_POLICY=policy(scratch, steer, order),
                                             ADVERB_LOOPBACK_TRANSLATIONS=MODEL)[0])
    medians = {steer: statistics.median(values) for steer, values in found.items()}
    better = min(("offload", "unload"), key=medians.get)
    row = native.ratio(found[better], found["auto"])
    return row | medians | {"faster": round(medians["offload"] / medians["auto"], 3)}


def times_with_send(programs, scratch, size, many):
    found = {True: [], False: []}
    for _ in range(PAIRS):
        for adverb in found:
            found[adverb].append(programs.run(adverb, size, many, INSIDE, HOT, 0, COUNT, "send",
                                              ADVERB_POLICY=policy(scratch, "auto", "strict"),
                                              ADVERB_LOOPBACK_TRANSLATIONS=MODEL)[0])
    return native.ratio(found[False], found[True]) | {"stock": statistics.median(found[False]),
                                                      "auto": statistics.median(found[True])}


def run(build, options):
    programs = native.Native(build, "bench_steering")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            for point in POINTS:
                bars = dict(point[-1])
                faster = bars.pop("faster", None)
                row = attempt(lambda point=point: times(programs, scratch, point), name=point[0], title=point[0],
                              table="time", **bars)
                yield row
                if faster is not None and row["value"] is not None:
                    yield {**{key: row[key] for key in (*POLICIES, "faster", "low", "high")},
                           "name": f"{point[0]}: offload by auto", "title": f"{point[0]}: offload by auto",
                           "table": "time", "value": row["faster"], "low": row["faster"], "high": row["faster"],
                           "pairs": row["pairs"], "at_least": faster}
            for size, many in AND_A_SEND:
                title = f"{size} B, {many} WRITE{'s' if many > 1 else ''} and a SEND"
                yield attempt(lambda size=size, many=many: times_with_send(programs, scratch, size, many), name=title,
                              title=title, table="send", at_most=1.03)
    finally:
        programs.close()


def line(row):
    if row["table"] == "send":
        return (f"{row['title'][:44]:44}{row['stock'] / 1000:9.2f}{row['auto'] / 1000:9.2f}"
                f"{row['value']:20.3f}{row['low']:8.3f} ..{row['high']:5.3f}")
    return (f"{row['title'][:44]:44}" + "".join(f"{row[steer] / 1000:9.2f}" for steer in POLICIES)
            + f"{row['value']:20.3f}{row['low']:8.3f} ..{row['high']:5.3f}{row['faster']:17.2f}")
