#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# What others wait for while a device attaches a whole extent.
# vm: iommu=intel device=edu,dma_mask=0xffffffffffffffff device=e1000e nodes=2
# newest: yes
# timeout: 120
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
load adverb_test_edu adverb_test_nic
"$programs/np_attach"
status=$?
unload adverb_test_edu adverb_test_nic && exit "$status"
