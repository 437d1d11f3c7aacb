#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# loopback.sh DIRECTORY-OF-LOOPBACK LIBADVERB VERIFY [gate]: every case on the loopback device, with the
# work done in the caller (inline) and by the device's threads (threaded), stock and under every policy;
# one TAP line for each. In the gate each policy that takes ways of its own is run in one mode.
# Finds a sanitizer's runtime in the program and puts it first. With ASan those policies that between
# them take every way, in one of the two modes; with TSan, the slowest, three policies and only the
# families in which threads meet: bytes are compared without it.
# What is waited for stands in loopback.await, so that no span of time decides what a log says.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
adverb=$2 verify=$3 part=${4:-all}
export LD_LIBRARY_PATH=$1
work=$(mktemp -d)
trap 'rm -rf "$work" /dev/shm/adverb-verify.$$.*' EXIT

modes=(inline threaded)
runs=() # policy.mode
for policy in default unpinned none mpi off none-relaxed small-pinned targets-unpinned proven odp steered far far-unpinned far-auto; do
  for mode in "${modes[@]}"; do runs+=("$policy.$mode"); done
done
if [ "$part" = gate ]; then
  runs=(unpinned.inline default.threaded none-relaxed.threaded proven.inline small-pinned.threaded
    targets-unpinned.inline steered.inline far.inline far-unpinned.threaded)
fi

# Not on this device: it has no kernel that would deny a forked child its parent's queue pairs, and
# it reaches memory by its address, so that its stock regions follow unmapping as adverb's do.
absent=(--except 'peer.daemonised*' --except 'differs.*')
# It has a few tries, as the device may store a word in two pieces.
[ "$part" != gate ] || absent+=(--except 'order.aligned_words')

case ${ADVERB_SANITIZER:-} in
asan)
  modes=(inline) runs=(unpinned.inline none-relaxed.inline)
  [ "$part" = gate ] || runs+=(proven.inline)
  ;;
tsan)
  modes=(threaded) runs=(unpinned.threaded small-pinned.threaded proven.threaded)
  mapfile -t families < <("$verify" --list | cut -d. -f1 | sort -u | grep -vxE 'order|state|cq')
  for family in "${families[@]}"; do absent+=(--except "$family.*"); done
  echo "# left out: ${families[*]}"
  ;;
esac

# Fabrics number their queue pairs alike and have the same addresses: in one network, programs of two
# would find each other's brokers. In networks of their own they can run at a time.
network=() at_a_time=1
for try in "unshare -n" "unshare -rn"; do
  if $try ip link set lo up 2> /dev/null; then
    read -ra network <<< "$try"
    at_a_time=4 # most of a run is waiting
    break
  fi
done

runtime=$(ldd "$verify" | awk '$1 ~ /^lib(asan|tsan)\.so/ { print $3 }')

# The lines of loopback.await, with those that hold for stock alone or without them.
sed 's/ | stock$//' "$here/loopback.await" > "$work/await.stock"
sed '/ | stock$/d' "$here/loopback.await" > "$work/await.adverb"

run() { # policy or stock, mode
  local name=$1.$2 policy=$1 await=$work/await.stock
  local -a words=("ADVERB_LOOPBACK_FABRIC=adverb-verify.$$.$name")
  [ "$2" = inline ] || words+=(ADVERB_LOOPBACK_INLINE=0 ADVERB_LOOPBACK_REUSE=1 ADVERB_LOOPBACK_CLEAN=1)
  # What stock is compared with has none.
  [ "$1" != odp ] || words+=("ADVERB_LOOPBACK_ODP=all")
  local bad=seed=7,loss=2e-2,burst=2,duplicate=1e-2,reorder=1e-2:8
  [ "$1" != far-auto ] || bad+=,delay=2ms # near, the device would keep all
  [ "${1%%-*}" != far ] || words+=("ADVERB_LOOPBACK_LINK=$bad")
  if [ "$1" != stock ]; then
    [ -e "$here/policies/$1.json" ] && policy=$here/policies/$1.json
    words+=("ADVERB_POLICY=$policy" "LD_PRELOAD=${runtime:+$runtime:}$adverb")
    words+=("ADVERB_STATS_FILE=$work/$name.stats/%p.json")
    await=$work/await.adverb
  fi
  # A WRITE need not wait there for one that went another way, and a key that is not virtual goes another
  # way: what is posted behind it may land before it is refused. (Their completions: unit/test_queue.)
  # A peer is told of no other domain's keys, so these are such, too.
  # A bad link loses what the program itself sends over UC and UD, too.
  local -a apart=()
  case $1 in
  none-relaxed) apart=(--except 'remote.wrong_key*' --except 'remote.foreign_key*' --except 'remote.other_pd*') ;;
  far | far-*) apart=(--except 'data.uc.*' --except 'data.ud.*' --except 'flow.receive_too_small_u*') ;;
  esac
  local -a chosen=("${absent[@]}" ${apart[@]+"${apart[@]}"})
  "$verify" --list "${chosen[@]}" | sort > "$work/$name.cases"
  mkdir "$work/$name.stats"
  # The pipe ends with the last of its processes: by then each has left its counters.
  # shellcheck disable=SC2016 # expanded by the inner shell
  ${network[@]+"${network[@]}"} sh -c 'ip link set lo up 2> /dev/null; exec "$@"' sh \
    env "${words[@]}" "$verify" --device lo0 "${chosen[@]}" --await "$await" --case-timeout 300 \
    --log "$work/$name" 2>&1 | cat > "$work/$name.out"
  echo "${PIPESTATUS[0]}" > "$work/$name.status"
}

# Why adverb was not in every process of a run; nothing if it was. A process that was killed leaves nothing.
escaped() { # policy, mode
  local out=$work/$1.$2.out stats=$work/$1.$2.stats pid seen=0 counter counters=regions_unpinned
  [ "$1" != odp ] || counters=regions_on_demand
  # A queue pair that has to be proven first may end before anything of it is steered.
  [ "$1" != steered ] || counters=hooks_calls
  # Packets carried something, bytes of SENDs among it, and some were lost.
  [ "${1%%-*}" != far ] || counters="endpoint_packets_again posts_send_ahead recvs_ahead"
  [ "$1" != far-auto ] || counters="path_soundings path_changes posts_steered"
  local -a pids
  mapfile -t pids < <(sed -n 's/^verify: process \([0-9]*\)$/\1/p' "$out")
  for pid in "${pids[@]}"; do
    if ! grep -q "^verify: process $pid ends without a word$" "$out"; then
      seen=$((seen + 1))
      jq -e '.counters.hooks_calls > 0' "$stats/$pid.json" > /dev/null 2>&1 ||
        echo "process $pid: hooks_calls is $(jq -c .counters.hooks_calls "$stats/$pid.json" 2>&1)"
    fi
  done
  [ "$seen" -ge 2 ] || echo "$seen processes left counters"
  for counter in $counters; do
    jq -es "map(.counters.$counter) | add > 0" "$stats"/*.json > /dev/null 2>&1 || echo "no process counts $counter"
  done
}

judge() { # what is so, why it is not
  if [ -z "$2" ]; then
    echo "ok - $1"
  else
    echo "not ok - $1: $(head -n 1 <<< "$2")"
    head -n 10 <<< "$2" | sed 's/^/# /'
  fi
}

tell() { # policy or stock, mode
  local name=$1.$2 status
  status=$(cat "$work/$name.status")
  judge "$1 $2: every case was run" "$(cut -d ' ' -f 1 "$work/$name" | sort -u | diff "$work/$name.cases" - 2>&1)"
  if [ "$status" = 0 ]; then
    echo "ok - $1 $2: right by itself"
  else
    echo "not ok - $1 $2: right by itself: exit status $status"
    grep -E 'BAD$| died | watchdog ' "$work/$name" | head -n 10 | sed 's/^/# /'
    tail -n 60 "$work/$name.out" | cut -c 1-300 | sed 's/^/# /'
  fi
}

compare() { # policy, mode
  local beside=$work/stock.$2 without=""
  case $1 in
  none-relaxed) without='^remote\.(wrong_key|foreign_key|other_pd)' ;;
  far | far-*) without='^(data\.u[cd]\.|flow\.receive_too_small_u)' ;;
  esac
  if [ -n "$without" ]; then
    grep -vE "$without" "$beside" > "$work/beside"
    beside=$work/beside
  fi
  "$here/verify-compare" --prefix "$1 $2" "$beside" "$work/$1.$2" > "$work/compared" 2>&1
  local status=$?
  cat "$work/compared"
  # It ends by 1 when it dies of an error, too.
  if [ $status -gt 1 ] || ! grep -q '^# [0-9]* cases the same' "$work/compared"; then
    echo "not ok - $1 $2: compared with stock: exit status $status"
  fi
}

for run in "${modes[@]/#/stock.}" "${runs[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$at_a_time" ]; do wait -n; done
  run "${run%.*}" "${run##*.}" &
done
wait

for mode in "${modes[@]}"; do
  tell stock "$mode"
  judge "stock $mode: all is seen that loopback.await says" "$(grep ', but awaited: ' "$work/stock.$mode.out" 2>&1)"
done
for run in "${runs[@]}"; do
  policy=${run%.*} mode=${run##*.}
  tell "$policy" "$mode"
  [ "$policy" = off ] || judge "$policy $mode: adverb was in every process" "$(escaped "$policy" "$mode")"
  compare "$policy" "$mode"
done
