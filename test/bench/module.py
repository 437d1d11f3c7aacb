# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""adverb.ko's steps beside pinning the same range, in guests: behind Intel's emulated IOMMU, whose walks may pass the
CPU's caches by, and AMD's, whose do not; with stock ibv_reg_mr on soft-RoCE in turns. And how long others wait while a
device attaches. Times under emulation are good as ratios only."""

import os
import re
import statistics
import subprocess

from native import interval

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
STEPS = "modprobe adverb && modprobe adverb_test_edu && \"$ADVERB_BUILD/test/kernel/np_bench\""
WAITS = ("modprobe adverb && modprobe adverb_test_edu && modprobe adverb_test_nic && "
         "\"$ADVERB_BUILD/test/kernel/np_attach\"")
# An emulated device has to have its memory somewhere; what is looked at is the kernel's part.
EDU = ("--device", "edu,dma_mask=0xffffffffffffffff")
VM = ("--mem", "3584", "--swap", "512", "--timeout", "1200", *EDU)
IOMMUS = {"Intel": ("--iommu", "intel"), "AMD": ("--iommu", "amd", "--append", "iommu.forcedac=1")}
WAITS_VM = ("--iommu", "intel", "--device", "e1000e", "--nodes", "2", "--timeout", "300", *EDU)
# Creation of a TiB takes at most so many times what that of a MiB takes.
FLAT = 3.0
# Of the attachment of a GiB another waits at most so much.
SHARE = 0.05


def guest(build, options, command):
    done = subprocess.run([os.path.join(REPO, "scripts", "vm"), *options, "--", command], check=False,
                          env={**os.environ, "ADVERB_BUILD": build}, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError("the guest failed:\n" + done.stdout)
    return done.stdout.splitlines()


def measure(build, iommu):
    """{step: {whose: values in the order of the rounds}}, in the order of the first round"""
    steps = {}
    for line in guest(build, (*VM, *IOMMUS[iommu]), STEPS):
        if line.count("\t") == 2:
            step, whose, value = line.split("\t")
            steps.setdefault(step, {}).setdefault(whose, []).append(float(value))
    if not steps:
        raise RuntimeError("the guest measured nothing")
    return steps


def figures(sides):
    """Medians and the 95% of the median; of rounds that have both, those of the ratio"""
    row = {}
    for whose, values in sides.items():
        row[whose] = statistics.median(values)
        row[f"{whose}_span"] = interval(sorted(values))
    if "stock" in sides and len(sides["stock"]) == len(sides["adverb"]) and row["stock"]:
        ratios = sorted(adverb / stock for stock, adverb in zip(sides["stock"], sides["adverb"]))
        row["ratio"] = float(f"{statistics.median(ratios):.2g}")
        row["low"], row["high"] = (float(f"{end:.2g}") for end in interval(ratios))
    return row


def step_rows(build, iommu):
    steps = measure(build, iommu)
    created = {length: steps.pop(f"create 1 {length}")["adverb"] for length in ("MiB", "TiB")}
    pinned = [steps.pop(name) for name in ("KiB pinned before", "KiB pinned of 65536")]
    for step, sides in steps.items():
        row = figures(sides)
        yield {"name": f"{iommu}: {step}", "value": row["adverb"], **row}
    ratios = sorted(large / small for small, large in zip(created["MiB"], created["TiB"]))
    yield {"name": f"{iommu}: create 1 TiB / 1 MiB", "bar": FLAT, "value": round(interval(ratios)[0], 2)}
    yield {"name": f"{iommu}: KiB pinned after / before", "bar": 0,
           "value": max(pinned[1]["adverb"]) - min(pinned[0]["adverb"])}


def wait_rows(build):
    """Of the notes of attach.c, as: who waits 1.4 of 76.9 ms"""
    found = re.findall(r"^# (.*) waits ([0-9.]+) of ([0-9.]+) ms$", "\n".join(guest(build, WAITS_VM, WAITS)), re.M)
    if not found:
        raise RuntimeError("nobody waited")
    for who, waited, whole in found:
        yield {"name": f"{who} waits, of an attachment of a GiB", "bar": SHARE, "value": round(float(waited) / float(whole), 3),
               "waited": float(waited), "whole": float(whole)}


def run(build):
    return [*step_rows(build, "Intel"), *step_rows(build, "AMD"), *wait_rows(build)]


def show(rows):
    def cell(row, whose):
        if whose not in row:
            return f"{'':26}"
        low, high = row[f"{whose}_span"]
        return f"{row[whose]:>10.2f} ({low:.2f}..{high:.2f})".rjust(26)

    print("adverb.ko behind emulated IOMMUs, and stock ibv_reg_mr of the same range: microseconds, medians (and 95% of them)")
    print(f"{'':48}{'stock':>26}{'adverb':>26}{'ratio':>8}{'95% of it':>16}")
    for row in rows:
        if "adverb" in row:
            ratio = f"{row['ratio']:>8}{row['low']:>8} ..{row['high']:>5}" if "ratio" in row else ""
            print(f"{row['name']:48}{cell(row, 'stock')}{cell(row, 'adverb')}{ratio}")
    for row in rows:
        if "bar" in row:
            of = f" ({row['waited']} of {row['whole']} ms)" if "whole" in row else ""
            print(f"{row['name']}: {row['value']}, bar {row['bar']}{of}")
