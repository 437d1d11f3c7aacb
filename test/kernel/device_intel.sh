#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Intel, legacy mode, 39 bits of address: where all that can show shows, under a long load.
# vm: qemu=7.2 iommu=intel,aw-bits=39 device=edu,dma_mask=0xffffffffffffffff device=e1000e nodes=2
# newest: yes
# timeout: 300
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=test/kernel/device_cases.sh
. "$(dirname "$0")/device_cases.sh"
row 7.2 "legacy, 39 bits"
device_cases 32
notices
notices_flush
