# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""adverb.ko's steps beside pinning the same range, in a guest: behind Intel's emulated IOMMU, with stock
ibv_reg_mr on soft-RoCE in turns. Times under emulation are good as ratios only."""

import os
import statistics
import subprocess

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
IN_GUEST = "modprobe adverb && modprobe adverb_test_edu && \"$ADVERB_BUILD/test/kernel/np_bench\""
# An emulated device has to have its memory somewhere; what is looked at is the kernel's part.
VM = ["--iommu", "intel", "--device", "edu,dma_mask=0xffffffffffffffff", "--mem", "3072", "--swap", "512",
      "--timeout", "900"]
# Creation of a TiB takes at most so many times what that of a MiB takes.
FLAT = 3.0


def measure(build):
    """{step: {whose: median of the rounds}}, in the order of the first round"""
    done = subprocess.run([os.path.join(REPO, "scripts", "vm"), *VM, "--", IN_GUEST], check=False,
                          env={**os.environ, "ADVERB_BUILD": build}, stdout=subprocess.PIPE, text=True)
    rounds = {}
    for line in done.stdout.splitlines():
        if line.count("\t") == 2:
            step, whose, value = line.split("\t")
            rounds.setdefault(step, {}).setdefault(whose, []).append(float(value))
    if done.returncode != 0 or not rounds:
        raise RuntimeError("the guest measured nothing:\n" + done.stdout)
    return {step: {whose: statistics.median(values) for whose, values in sides.items()}
            for step, sides in rounds.items()}


def run(build):
    steps = measure(build)
    rows = [{"name": step, "value": sides["adverb"], **sides} for step, sides in steps.items()]
    for row in rows:
        if "stock" in row and row["stock"]:
            row["ratio"] = float(f"{row['adverb'] / row['stock']:.2g}")
    rows.append({"name": "create 1 TiB / 1 MiB", "bar": FLAT,
                 "value": round(steps["create 1 TiB"]["adverb"] / steps["create 1 MiB"]["adverb"], 2)})
    rows.append({"name": "KiB pinned after / before", "bar": 0,
                 "value": steps["KiB pinned of 65536"]["adverb"] - steps["KiB pinned before"]["adverb"]})
    return rows


def show(rows):
    print("adverb.ko behind an emulated Intel IOMMU, and stock ibv_reg_mr of the same range (medians)")
    print(f"{'':32}{'stock':>14}{'adverb':>14}{'ratio':>9}")
    for row in rows:
        unit = "" if "KiB" in row["name"] or "/" in row["name"] else " us"
        cells = "".join(f"{row[whose]:>11.2f}{unit:3}" if whose in row else f"{'':14}"
                        for whose in ("stock", "adverb"))
        if "bar" in row:
            cells = f"{row['value']:>25.2f}   "
        print(f"{row['name']:<32}{cells}{row.get('ratio', ''):>9}")
