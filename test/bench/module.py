# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""adverb.ko's steps beside pinning the same memory, in a guest: behind Intel's emulated IOMMU, with stock
ibv_reg_mr on soft-RoCE. Times under emulation are good as ratios only."""

import os
import subprocess

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
IN_GUEST = "modprobe adverb && modprobe adverb_test_edu && \"$ADVERB_BUILD/test/kernel/np_bench\""
# An emulated device has to have its memory somewhere; what is looked at is the kernel's part.
VM = ["--iommu", "intel", "--device", "edu,dma_mask=0xffffffffffffffff", "--timeout", "200"]


def run(build):
    done = subprocess.run([os.path.join(REPO, "scripts", "vm"), *VM, "--", IN_GUEST], check=True,
                          env={**os.environ, "ADVERB_BUILD": build}, stdout=subprocess.PIPE, text=True)
    rows = []
    for line in done.stdout.splitlines():
        name, tab, value = line.partition("\t")
        if tab:
            rows.append({"name": name, "value": float(value)})
    if not rows:
        raise RuntimeError("the guest measured nothing:\n" + done.stdout)
    for row in rows:
        if row["name"] == "KiB pinned of 64 MiB":
            row["bar"] = 0
    return rows


def show(rows):
    print(f"{'adverb.ko, emulated Intel IOMMU':<46}{'us':>12}")
    for row in rows:
        unit = "" if "KiB" in row["name"] or "retargets" in row["name"] else " us"
        print(f"{row['name']:<46}{row['value']:>12.2f}{unit}")
