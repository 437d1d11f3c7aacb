#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# AMD, addresses below 4 GiB, as the kernel prefers them: three levels.
# vm: qemu=7.2 iommu=amd device=edu,dma_mask=0xffffffffffffffff device=e1000e nodes=2
# newest: yes
# timeout: 300
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=test/kernel/device_cases.sh
. "$(dirname "$0")/device_cases.sh"
row 7.2 amd
device_cases 32
notices
