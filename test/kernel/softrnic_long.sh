#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# The same for as many READs and WRITEs as chance may need: 100,000, and 1,000,000 of a hostile RNIC's on the usual
# kernel; 10,000 on the debug kernel.
# Not on QEMU 7.2, on which the guest panicked after minutes of it, with half an operand of cmpxchg16b in its flags.
# vm: qemu=10 nodes=2 swap=512 device=edu disk=320 disk=320
# timeout: 5400
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
need_soft_rnic
polite=100000 hostile=100000
case "$(uname -r)" in 6.12.*) hostile=1000000 ;; esac
! debug_kernel || polite=10000 hostile=10000
load rdma_rxe
ADVERB_SOFTRNIC_OPERATIONS=$polite "$programs/np_softrnic" "polite READs and WRITEs"
status=$?
ADVERB_SOFTRNIC_OPERATIONS=$hostile "$programs/np_softrnic" "hostile READs and WRITEs" || status=1
unload rdma_rxe && exit "$status"
