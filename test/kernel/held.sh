#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# An owner who keeps its mmap_lock, and those who must not wait for it.
# vm: iommu=intel device=edu,dma_mask=0xffffffffffffffff
# newest: yes
# timeout: 180
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
load adverb_test_edu
"$programs/np_held"
status=$?
unload adverb_test_edu && exit "$status"
