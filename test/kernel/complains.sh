#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# The debug kernel does complain: of each mistake made on purpose (broken/breakage.h), in the words that
# the other scripts look for. In a boot of its own, as it trusts nothing after the first.
# kernel: debug
# vm: mem=3000
# timeout: 120
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"

# $1: a number of breakage.h, $2: what it is, $3...: what must be among the complaints.
must_complain() {
  local mistake=$1 what=$2 words found
  shift 2
  need insmod "$broken_module" broken="$mistake"
  need modprobe adverb_test_soft
  "$programs/np_region" "parks every page"
  found=$(complaints)
  for words in "$@"; do
    if [[ "$found" == *"$words"* ]]; then
      echo "ok - $what: the debug kernel says \"$words\""
    else
      echo "not ok - $what: the debug kernel says \"$words\": it said ${found:-nothing}"
    fi
  done
  need rmmod adverb_test_soft
  need rmmod adverb
}

quiet 2> /dev/null
need modprobe adverb
no_complaints
need rmmod adverb
# To go on after a report.
echo 0 > /proc/sys/kernel/panic_on_warn
must_complain 20 "allocating under a lock that reclaim takes" \
  "sleeping function called from invalid context" "possible circular locking dependency" "lockdep has given up"
must_complain 21 "forgetting memory" "leaked by"
must_complain 22 "looking at freed memory" "KASAN: slab-use-after-free"
