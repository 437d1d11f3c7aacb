#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# What registration_guest.py has a virtual host with soft-RoCE measure by the clock: stock and adverb by
# turns, a line "WHAT ... WHOSE FIGURE..." of each.
#
#   registration_guest.sh FIRSTS BUDGETS TURNS
#
# A line "end PART" follows the last of each part. FIRSTS: how often the time to a first byte is measured; BUDGETS:
# a list of pinned_budget, with commas; TURNS: how often bandwidths are measured.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=test/system/lib.sh
. test/system/lib.sh
firsts=$1 turns=$3
IFS=, read -ra budgets <<< "$2"
# shellcheck disable=SC2034 # lib.sh's
PAIR_SECONDS=90
unpinned="adverb run --profile unpinned --"
footprint=$ADVERB_BUILD/test/bench/bench_footprint
message=65536
table=$((8 << 30))  # registered by a host of 3 GiB
fits=$((256 << 20)) # of which stock can pin as much
progress() { echo "registration: $*" >&2; }

# Under the words of $1: stock or adverb.
wrap() { [ "$1" = stock ] || echo "$unpinned"; }

# bandwidth PROGRAM WHOSE, in MiB/s. Once more where perftest cannot make out the virtual CPU's clock.
bandwidth() {
  local options="-F -d rxe0 -x 1 -p PORT -s $message -n 1500" found="" try
  ADVERB_RUN=$(wrap "$2")
  for try in 1 2 3; do
    both_ends "$1" "$1 $options" "$1 $options SERVER" || { outputs >&2; continue; }
    found=$(awk -v bytes=$message '$1 == bytes && $4 ~ /^[0-9.]+$/ && $4 > 0 {print $4}' "$scratch/client.out")
    [ -z "$found" ] || break
    progress "$1, $2: try $try gave no figure"
  done
  echo "bandwidth $1 $2 $found"
}

# The device's registered bytes, of all programs.
registered() { rdma -j resource show mr | jq '[.[].mrlen // 0] | add // 0'; }

# receives WHOSE: KiB pinned, locked, resident and registered, when 4096 x 8 KiB are posted and at most.
receives() {
  local posted peak bytes pid
  # shellcheck disable=SC2046 # words
  coproc poster { exec $(wrap "$1") "$footprint" receives 4096 8192; }
  # shellcheck disable=SC2154 # made by coproc, and gone with it
  pid=$poster_PID
  read -r posted <&"${poster[0]}" || { progress "$1: receives cannot be posted"; return 1; }
  bytes=$(registered)
  echo >&"${poster[1]}"
  read -r peak <&"${poster[0]}" || { progress "$1: receives do not complete"; return 1; }
  wait "$pid"
  echo "receives $1 ${posted#posted } $((bytes / 1024)) ${peak#peak }"
}

# first WHOSE BYTES: nanoseconds until the first byte, KiB pinned, locked, resident. In a control group, so that
# only the program ends that wants more memory than there is.
first() {
  local group=/sys/fs/cgroup/first begun said status=0
  begun=$(date +%s%N)
  # shellcheck disable=SC2046 # words
  said=$(echo "$BASHPID" > $group/cgroup.procs && exec $(wrap "$1") "$footprint" first "$2" "$begun" 2> "$scratch/first.err") ||
    status=$?
  if [ "$status" = 0 ]; then
    echo "first $1 $2 $said"
  else
    echo "first $1 $2 failed $status $(($(date +%s%N) - begun)) $(head -c 100 "$scratch/first.err")"
  fi
}

make_group() {
  echo +memory > /sys/fs/cgroup/cgroup.subtree_control
  mkdir -p /sys/fs/cgroup/first
  echo $((1 << 30)) > /sys/fs/cgroup/first/memory.max
}

# budget NAME: the peaks of both ends together that use 128 MiB each, KiB pinned and resident; NAME "stock",
# or a pinned_budget.
budget() {
  local options="-F -d rxe0 -x 1 -p PORT -s $((4 << 20)) -q 16 -n 5" role pin rss sum=(0 0)
  ADVERB_RUN=""
  if [ "$1" != stock ]; then
    printf '{ "version": 1, %s "rules": [{ "register": "elastic" }, { "peers": "auto" }] }\n' \
      "$([ "$1" = auto ] || echo "\"pinned_budget\": \"$1\",")" > "$scratch/budget.json"
    ADVERB_RUN="adverb run --policy $scratch/budget.json --"
  fi
  # shellcheck disable=SC2034 # lib.sh's
  local PAIR_PEAKS=yes
  both_ends "budget $1" "ib_read_bw $options" "ib_read_bw $options SERVER" || { outputs >&2; return 1; }
  for role in server client; do
    read -r pin rss < "$scratch/$role.peak" || { echo "# budget $1: the $role's peak was not measured" >&2; return 1; }
    sum=($((sum[0] + pin)) $((sum[1] + rss)))
  done
  echo "budget $1 ${sum[*]}"
}

make_group
for whose in stock adverb; do
  progress "4096 receives, $whose"
  receives $whose
done
echo end receives
for turn in $(seq "$firsts"); do
  for size in $fits $table; do
    for whose in stock adverb; do
      progress "first byte of $size, $whose, turn $turn"
      first $whose "$size"
    done
  done
done
echo end first
for name in stock "${budgets[@]}"; do
  progress "memory, pinned_budget $name"
  budget "$name"
done
echo end budgets
for program in ib_write_bw ib_read_bw ib_send_bw; do
  for turn in $(seq "$turns"); do
    for whose in stock adverb; do
      progress "$program, $whose, turn $turn"
      bandwidth $program $whose
    done
  done
  [ "$turns" = 0 ] || echo "end $program"
done
exit 0
