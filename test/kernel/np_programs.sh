#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Programs whose regions are read by views (backend np) over the soft RNIC: the verifier beside stock, then
# READs of memory that is taken away again and again, politely and not.
# vm: nodes=2 swap=1024 mem=2560 device=edu
# timeout: 1500
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
need_soft_rnic
load rdma_rxe
# shellcheck source=test/system/verify_cases.sh
. "$(dirname "$0")/../system/verify_cases.sh"

group=/sys/fs/cgroup/np
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
mkdir "$group"

counted() { # NAME: of all programs of the last run
  grep -ho "\"$1\": *[0-9]*" "$scratch"/counted.* | awk '{ n += $2 } END { print n + 0 }'
}

# READs that go by views meet pages that are away, and bring what is right: NAME PROGRAM...
while_pages_leave() {
  local name=$1 pid status
  shift
  rm -f "$scratch"/counted.*
  (
    echo "$BASHPID" > "$group/cgroup.procs"
    export ADVERB_STATS_FILE=$scratch/counted.%p
    # shellcheck disable=SC2046 # the wrap is words
    exec timeout -k 5 200 $(under np) "$@"
  ) > "$scratch/out" 2>&1 &
  pid=$!
  until ended "$pid"; do
    echo 4M > "$group/memory.reclaim" 2> /dev/null # fails where less can be taken
    nap 0.1
  done
  wait "$pid"
  status=$?
  echo "# $(counted posts_np_read) READs by views, $(counted reads_missed) missed, $(counted reads_again) again"
  if [ "$status" -ne 0 ]; then
    not_ok "$name" "exit status $status"
    sed 's/^/# /' "$scratch/out" | tail -n 20
  elif [ "$(counted posts_np_read)" -eq 0 ] || [ "$(counted reads_missed)" -eq 0 ]; then
    not_ok "$name" "no READ by a view has met a page that was away"
  else
    ok "$name"
  fi
}

verify_both np pair np
for hostile in 0 1; do
  echo "$hostile" > /sys/module/rdma_rxe/parameters/hostile
  temper=$([ "$hostile" = 0 ] && echo polite || echo hostile)
  while_pages_leave "READs of pages that leave, to bytes that are read and sent again: $temper RNIC" \
    "$ADVERB_BUILD/test/overlap/landing" --seconds 15
done
exit 0
