#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# adverb.ko with a device in software and with QEMU's behind the IOMMU.
# vm: mem=3072 nodes=2 swap=512 iommu=intel,aw-bits=39 device=edu,dma_mask=0xffffffffffffffff device=e1000e
# gate: yes
# timeout: 1800
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/../kernel/lib.sh"
# shellcheck source=test/kernel/device_cases.sh
. "$(dirname "$0")/../kernel/device_cases.sh"
export ADVERB_GATE=yes
status=0

load adverb_test_soft
for program in region extent table handed enter leave fuzz; do
  "$programs/np_$program" || status=1
done
unload adverb_test_soft || status=1

load "${drivers[@]}"
directed 32
no_faults
unload "${drivers[@]}" || status=1
must_notice 1 np_device "forgets the old translation" "the IOTLB sync" "${drivers[@]}"
must_notice 5 np_device "forgets the old translation" "parking the IOMMU entry" "${drivers[@]}"
exit "$status"
