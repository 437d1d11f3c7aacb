#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Makes the far demo's table, with bars, of what far_guest.sh says on stdin, and gives the verdict.

usage: far_table.py RUNS DELAY,LOSS...     exit status 0 only if every run was measured, and packets carried adverb's"""

import pathlib
import statistics
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
from native import interval

PROGRAMS = ("ib_write_bw", "ib_read_bw", "ib_send_bw")
WIDTH = 40  # characters of the longest bar
RUNS_OF_INTERVAL = 6


def main():
    runs, kinds = int(sys.argv[1]), [tuple(kind.split(",")) for kind in sys.argv[2:]]
    rates, wrong = {}, []
    for line in sys.stdin:
        words = line.removeprefix("[1] ").split()
        if words[:2] == ["not", "ok"]:
            wrong.append(line.strip())
        if words[:1] != ["far"] or len(words) != 7:
            continue
        _, delay, loss, program, whose, rate, packets = words
        if rate == "none" or packets == "none" or (whose == "adverb" and int(packets) < 100):
            wrong.append(f"{program}, {whose}, {delay} ms, {loss} %: rate {rate}, {packets} packets of adverb's")
        else:
            rates.setdefault((delay, loss, program, whose), []).append(float(rate))
    most = max((statistics.median(values) for values in rates.values()), default=1) or 1
    shown = runs >= RUNS_OF_INTERVAL
    title = f"{'95 % of median':>16}" if shown else ""
    print(f"{'each way':<16}{'program':<14}{'':<8}{'MiB/s':>8}{title}{'ratio':>7}")
    for delay, loss in kinds:
        for program in PROGRAMS:
            medians, ends = {}, {}
            for whose in ("stock", "adverb"):
                values = rates.get((delay, loss, program, whose), [])
                if len(values) != runs:
                    wrong.append(f"{program}, {whose}, {delay} ms, {loss} %: {len(values)} of {runs} runs were measured")
                medians[whose] = statistics.median(values) if values else None
                ends[whose] = "{:.2f} .. {:.2f}".format(*interval(sorted(values))) if values else "-"
            for whose, median in medians.items():
                first = whose == "stock"
                name = f"{delay} ms, {loss} %" if first and program == PROGRAMS[0] else ""
                ratio = ""
                if not first and median and medians["stock"]:
                    ratio = f"{median / medians['stock']:.1f}x"
                rate = "-" if median is None else f"{median:.2f}"
                between = f"{ends[whose]:>16}" if shown else ""
                print(f"{name:<16}{program if first else '':<14}{whose:<8}{rate:>8}{between}{ratio:>7}  "
                      + "#" * round(WIDTH * (median or 0) / most))
    print("\nTwo virtual hosts without hardware acceleration: compare the rows of a program, not the numbers with a "
          "NIC's.\nadverb carries WRITEs, READs and SENDs as packets that it repairs (profile far).")
    for objection in wrong:
        print(f"demo: {objection}")
    print("demo: every run was measured, and packets carried adverb's" if not wrong else
          f"demo: failed, {len(wrong)} objections")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
