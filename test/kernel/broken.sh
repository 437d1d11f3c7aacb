#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# The tests notice when a step of the protocol is missing; and what Enter does when it never succeeds.
# vm: nodes=2 swap=512 device=edu disk=320 disk=320
# timeout: 240
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
quiet 2> /dev/null
file_system ext4 "$VM_DISK_0"
must_notice 4 np_leave "MADV_FREE" "marking pages dirty" adverb_test_soft
must_notice 6 np_enter "leaves during its fault-in" "looking whether a page has left meanwhile" adverb_test_soft
must_notice 7 np_pressure "OOM reaper" "working where it must not block" adverb_test_soft
umount -q /run/np_ext4
# What no test brings about at will.
need insmod "$broken_module" broken=10
load_driver adverb_test_soft
"$programs/np_enter" "gives up"
status=$?
unload adverb_test_soft && exit "$status"
