# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""adverb.ko's steps beside pinning the same range, in guests: behind Intel's emulated IOMMU, whose walks may pass the
CPU's caches by, and AMD's, whose do not; with stock ibv_reg_mr on soft-RoCE in turns. And how long others wait while a
device attaches. Times under emulation are good as ratios only."""

import re
import statistics

import guest
from bars import PAIRS, attempt, scope
from native import interval, ratio

TARGETS = [*guest.TARGETS, "kernel/built-6.12", "test/kernel/np_bench", "test/kernel/np_attach"]
WITHOUT_COUNTS = "its steps are timed; what they pin is counted by the tests of test/kernel"
ROUNDS, SHORT_ROUNDS = 7, 1  # of all steps; without --long
LAST = "1 GiB resident: build, show, attach\tstock"  # of a round
# Creation alone is through soon, so of it there are as many rounds as decide.
STEPS = f"""modprobe adverb && modprobe adverb_test_edu || exit 1
bench=$ADVERB_BUILD/test/kernel/np_bench
for round in $(seq {PAIRS}); do
  stdbuf -oL "$bench" | sed -nu '/^create/p; /^create 1 TiB/q'
  echo created
done
stdbuf -oL "$bench" | awk '{{print; fflush()}} /^{LAST}/ && ++n == %d {{exit}}'
"""
WAITS = ("modprobe adverb && modprobe adverb_test_edu && modprobe adverb_test_nic && "
         "\"$ADVERB_BUILD/test/kernel/np_attach\"; true")
# An emulated device has to have its memory somewhere; what is looked at is the kernel's part.
EDU = ("--device", "edu,dma_mask=0xffffffffffffffff")
VM = ("--mem", "3584", "--swap", "512", "--timeout", "2400", *EDU)
IOMMUS = {"Intel": ("--iommu", "intel"), "AMD": ("--iommu", "amd", "--append", "iommu.forcedac=1")}
WAITS_VM = ("--iommu", "intel", "--device", "e1000e", "--nodes", "2", "--timeout", "300", *EDU)
# Creation of a TiB takes at most so many times what that of a MiB takes.
FLAT = 3.0
# Of the attachment of a GiB another waits at most so much.
SHARE = 0.05
WAITERS = 3  # threads while it attaches and lets go, and another device
TABLES = {
    "created": f"adverb.ko behind emulated IOMMUs: microseconds\n{'creation of a region':48}{'1 MiB':>10}{'1 TiB':>10}"
               f"{'ratio':>7}{'95% of it':>15}",
    "steps": f"{'microseconds, medians (and 95% of them)':48}{'stock':>26}{'adverb':>26}{'ratio':>8}{'95% of it':>16}",
    "pinned": f"{'KiB pinned by 64 MiB of a region':48}{'before':>10}{'after':>10}{'added':>10}",
    "waits": f"{'others, while a device attaches a GiB':48}{'ms':>10}{'of':>10}{'share':>10}",
}


def steps_of(said):
    """{step: {whose: values in the order of the rounds}}, in the order of the first round"""
    steps = {}
    for line in said:
        if line.count("\t") == 2:
            step, whose, value = line.split("\t")
            steps.setdefault(step, {}).setdefault(whose, []).append(float(value))
    return steps


def created(said):
    steps = steps_of(said)
    figures = ratio(*(steps[f"create 1 {length}"]["adverb"] for length in ("MiB", "TiB")))
    return figures | {"mib": figures.pop("stock"), "tib": figures.pop("adverb")}


def pinned(steps):
    before, after = (steps[name]["adverb"] for name in ("KiB pinned before", "KiB pinned of 65536"))
    return {"before": min(before), "after": max(after), "value": max(after) - min(before)}


def figures_of(sides):
    """Medians and the 95% of the median; of rounds that have both, those of the ratio"""
    row = {"value": statistics.median(sides["adverb"])}
    for whose, values in sides.items():
        row[whose] = statistics.median(values)
        row[f"{whose}_span"] = interval(sorted(values))
    if "stock" in sides and len(sides["stock"]) == len(sides["adverb"]) and row["stock"]:
        ratios = sorted(adverb / stock for stock, adverb in zip(sides["stock"], sides["adverb"]))
        row["ratio"] = float(f"{statistics.median(ratios):.2g}")
        row["ratio_span"] = [float(f"{end:.2g}") for end in interval(ratios)]
    return row


def step_rows(build, iommu, rounds):
    said, creations = [], 0
    for line in guest.lines(build, *VM, *IOMMUS[iommu], "--", STEPS % rounds):
        if line != "created":
            said.append(line)
            continue
        creations += 1
        if creations == PAIRS:
            yield attempt(lambda: created(said), name=f"{iommu}: create 1 TiB / 1 MiB", table="created", at_most=FLAT)
            said.clear()
    steps = steps_of(said)
    yield attempt(lambda: pinned(steps), name=f"{iommu}: KiB pinned after / before", table="pinned", at_most=0)
    for step, sides in steps.items():
        if not step.startswith("KiB"):
            yield attempt(lambda sides=sides: figures_of(sides), name=f"{iommu}: {step}", table="steps")


def wait_rows(build):
    """Of the words of attach.c, whether it finds them good or not: NAME waits 1.4 of 76.9 ms"""
    said = "\n".join(guest.lines(build, *WAITS_VM, "--", WAITS))
    found = re.findall(r"^(?:# |not ok - [^:\n]*: )(.*) waits ([0-9.]+) of ([0-9.]+) ms$", said, re.M)
    for name, waited, whole in found:
        yield {"name": f"{name} waits", "table": "waits", "at_most": SHARE,
               "value": round(float(waited) / float(whole), 3), "waited": float(waited), "whole": float(whole)}
    if len(found) != WAITERS:
        raise RuntimeError(f"np_attach has told of {len(found)} that wait, not of {WAITERS}:\n{said[-600:]}")


def run(build, options):
    rounds = scope(options, None, SHORT_ROUNDS, ROUNDS)
    yield from step_rows(build, "Intel", rounds)
    if options.long:
        yield from step_rows(build, "AMD", rounds)
    yield from wait_rows(build)


def line(row):
    def cell(whose):
        if whose not in row:
            return f"{'':26}"
        low, high = row[f"{whose}_span"]
        return f"{row[whose]:>10.2f} ({low:.2f}..{high:.2f})".rjust(26)

    name = f"{row['name']:48}"
    if row["table"] == "created":
        return f"{name}{row['mib']:10.1f}{row['tib']:10.1f}{row['value']:7.2f}{row['low']:8.2f} ..{row['high']:5.2f}"
    if row["table"] == "steps":
        low, high = row.get("ratio_span", ("", ""))
        return f"{name}{cell('stock')}{cell('adverb')}" + (f"{row['ratio']:>8}{low:>8} ..{high:>5}" if low != "" else "")
    figures = ("before", "after", "value") if row["table"] == "pinned" else ("waited", "whole", "value")
    return name + "".join(f"{row[figure]:>10}" for figure in figures)
