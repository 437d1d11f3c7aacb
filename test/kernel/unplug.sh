#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Devices that go while a region is in their hands. Functions of one slot without ACS are of one IOMMU
# group (at the root complex, Intel's would count as having it).
# vm: iommu=intel device=pcie-root-port,id=root,chassis=1,addr=0x8 device=edu,dma_mask=0xffffffffffffffff,bus=root,addr=0x0.0,multifunction=on device=e1000e,bus=root,addr=0x0.1
# timeout: 120
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
load adverb_test_edu adverb_test_nic
"$programs/np_unplug"
status=$?
# For this the driver is loaded anew, when edu has its addresses: the domain hands out below what it handed out last.
need rmmod adverb_test_nic
"$programs/np_unplug" beyond || status=1
unload adverb_test_edu adverb_test_nic && exit "$status"
