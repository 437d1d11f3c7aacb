#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Everything at once, on a device in software and on one behind an IOMMU: for minutes on the debug kernel.
# vm: iommu=intel device=edu,dma_mask=0xffffffffffffffff nodes=2 swap=512
# timeout: 240
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
load adverb_test_soft adverb_test_edu
! debug_kernel || export ADVERB_RACE_SECONDS=${ADVERB_RACE_SECONDS:-240}
"$programs/np_race"
status=$?
unload adverb_test_soft adverb_test_edu && exit "$status"
