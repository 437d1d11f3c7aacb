#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Directed steps, and frames under load, through AMD's emulated IOMMU. QEMU's forgets nothing too late, so
# leaving the sync out cannot be seen here.
# vm: iommu=amd device=edu,dma_mask=0xffffffffffffffff device=e1000e nodes=2
# timeout: 420
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=test/kernel/device_cases.sh
. "$(dirname "$0")/device_cases.sh"
device_cases
