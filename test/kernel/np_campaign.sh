#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# READs of any size and alignment under backend np, by a program that checks every byte, while pages are swapped out,
# moved, compacted, merged, collapsed, split, copied at a fork, freed, mapped anew and without rights.
# ADVERB_SOFTRNIC_OPERATIONS says how many READs each of its tests does, ADVERB_CAMPAIGN_SEED which.
# Not on QEMU 7.2 (softrnic_long.sh).
# vm: qemu=10 nodes=2 swap=512 device=edu disk=320 disk=320
# timeout: 5400
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
need_soft_rnic
load rdma_rxe
# shellcheck source=test/system/lib.sh
. "$(dirname "$0")/../system/lib.sh"
export ADVERB_SOFTRNIC_OPERATIONS=${ADVERB_SOFTRNIC_OPERATIONS:-4000}
group=/sys/fs/cgroup/campaign

counted() { # NAME: of all processes of the last run
  grep -ho "\"$1\": *[0-9]*" "$scratch"/counted.* | awk '{ n += $2 } END { print n + 0 }'
}

# What the kernel does to the pages from outside, until the process $1 ends.
disturb() {
  while kill -0 "$1" 2> /dev/null; do
    echo 1M > "$group/memory.reclaim" 2> /dev/null # fails where less can be taken
    echo 1 > /proc/sys/vm/compact_memory
    sleep 0.5
  done
}

# One test of the program: its name contains $1, and $2 counters that must not be 0.
one() {
  local name=$1 counter value pid
  shift
  rm -f "$scratch"/counted.*
  (
    echo "$BASHPID" > "$group/cgroup.procs"
    export ADVERB_STATS_FILE=$scratch/counted.%p
    # shellcheck disable=SC2086 # the wrap is words
    exec $under_np "$programs/np_campaign" "$name"
  ) &
  pid=$!
  disturb "$pid"
  wait "$pid" || status=1
  for counter in posts_np_read posts_unload reads_missed read_pages_missed reads_again; do
    echo "# $counter: $(counted "$counter")"
  done
  for counter in "$@"; do
    value=$(counted "$counter")
    if [ "$value" -gt 0 ]; then ok "$name: $counter"; else not_ok "$name: $counter" "none"; fi
  done
  echo "# merged pages $(cat /sys/kernel/mm/ksm/pages_sharing); $(grep -E '^(pswpout|pgmigrate_success|thp_collapse_alloc|thp_split_pmd|compact_success|ksm_swpin_copy|cow_ksm) ' /proc/vmstat | tr '\n' ' ')"
}

under_np="adverb run --policy $(dirname "$0")/../verify/policies/np.json --"
status=0
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
mkdir "$group"
echo 1 > /sys/kernel/mm/ksm/run
echo 0 > /sys/kernel/mm/ksm/sleep_millisecs
one "polite RNIC" posts_np_read reads_missed
one "hostile RNIC" posts_np_read reads_missed
one "rights are taken" posts_np_read reads_missed
echo 2 > /sys/kernel/mm/ksm/run
unload rdma_rxe || exit 1
# It ends with the first.
export ADVERB_SOFTRNIC_OPERATIONS=20000
before=$under_np because="wrong byte" must_notice 9 np_campaign "hostile RNIC" "keeping a page in place for a copy" rdma_rxe
exit "$status"
