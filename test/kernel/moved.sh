#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Pages that go on living on another node or at another address.
# vm: nodes=2 swap=512 device=edu disk=320 disk=320
# timeout: 150
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"

# As eager as it gets: the whole of an address space every hundredth of a second.
balance() {
  local knobs=/sys/kernel/debug/sched/numa_balancing
  echo 10 > "$knobs/scan_delay_ms"
  echo 10 > "$knobs/scan_period_min_ms"
  echo 50 > "$knobs/scan_period_max_ms"
  echo 1 > /proc/sys/kernel/numa_balancing
}

load adverb_test_soft
status=0
"$programs/np_moved" userfaultfd || status=1
need balance
"$programs/np_moved" NUMA || status=1
# The tests after this one want to be the only ones who move pages.
quiet
unload adverb_test_soft && exit "$status"
