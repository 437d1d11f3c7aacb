#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Allocations that fail, each of every call in turn: the debug kernel can make them.
# kernel: debug
# vm: iommu=intel device=edu,dma_mask=0xffffffffffffffff mem=2048
# timeout: 120
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
load adverb_test_edu
"$programs/np_failing"
status=$?
unload adverb_test_edu && exit "$status"
