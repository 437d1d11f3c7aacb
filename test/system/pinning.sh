#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072
# wrap: stock adverb
# timeout: 420
# What the kernel says is pinned while unmodified programs run: all of it under stock, next to
# nothing under adverb, where the counters of both ends must show that the run was intercepted.
. "$(dirname "$0")/perftest_cases.sh"

most=16 # MiB that may be pinned under adverb

# pins_as_promised PROGRAM MIB [OPTION]...: buffers of twice 16 MiB on each end.
pins_as_promised() {
  local program=$1 expected=$2 role pin
  shift 2
  perftest "$program runs" "$program" "$@" || return
  for role in server client; do
    pin=$(peak_pin "$role")
    if [ "$WRAP" = stock ]; then
      [ "$pin" -ge "$expected" ] && ok "$program $role pins its buffer" ||
        not_ok "$program $role pins its buffer" "VmPin peaked at $pin MiB, not $expected"
    else
      [ "$pin" -le "$most" ] && ok "$program $role pins at most $most MiB" ||
        not_ok "$program $role pins at most $most MiB" "VmPin peaked at $pin MiB"
      [ "$(counter "$role" regions_unpinned)" -gt 0 ] 2> /dev/null && ok "$program $role is intercepted" ||
        not_ok "$program $role is intercepted" "regions_unpinned is '$(counter "$role" regions_unpinned)'"
    fi
  done
}

export PAIR_SECONDS=120
pins_as_promised ib_write_bw 32 -s 16777216 -n 5
pins_as_promised ib_read_bw 32 -s 16777216 -n 5
pins_as_promised ib_atomic_bw 0 -n 100
