#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Intel, legacy mode, 48 bits of address, all of them used.
# vm: qemu=7.2 iommu=intel,aw-bits=48 append=iommu.forcedac=1 device=edu,dma_mask=0xffffffffffffffff device=e1000e nodes=2
# timeout: 300
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=test/kernel/device_cases.sh
. "$(dirname "$0")/device_cases.sh"
row 7.2 "legacy, 48 bits"
device_cases 48
notices
