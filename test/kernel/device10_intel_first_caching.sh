#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Intel, scalable mode, first-stage tables, caching mode: mappings that appear are flushed, too.
# vm: qemu=10 iommu=intel,aw-bits=48,x-scalable-mode=on,x-flts=on,caching-mode=on append=iommu.forcedac=1 device=edu,dma_mask=0xffffffffffffffff device=e1000e nodes=2
# timeout: 300
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=test/kernel/device_cases.sh
. "$(dirname "$0")/device_cases.sh"
row 10 "scalable, first stage, 48 bits, caching mode"
device_cases 47
notices
