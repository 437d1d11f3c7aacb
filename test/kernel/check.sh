#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Devices are asked for beforehand, among them one that caches translations: it is the only one on its bus.
# vm: iommu=intel,device-iotlb=on device=edu,dma_mask=0xffffffffffffffff device=pcie-root-port,id=root,chassis=1,addr=0x8 device=virtio-rng-pci,bus=root,ats=on,disable-legacy=on,iommu_platform=on
# newest: yes
# timeout: 120
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
load adverb_test_edu
"$programs/np_check"
status=$?
unload adverb_test_edu && exit "$status"
