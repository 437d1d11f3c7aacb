#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# loopback.sh DIRECTORY-OF-LOOPBACK LIBADVERB VERIFY: every case on the loopback device, with the work
# done in the caller (inline) and by the device's threads (threaded), stock and under every policy; one
# TAP line for each. Finds a sanitizer's runtime in the program and puts it first. With ASan those
# policies that between them take every way, in one of the two modes; with TSan, the slowest, three
# policies and only the families in which threads meet: bytes are compared without it.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
adverb=$2 verify=$3
export LD_LIBRARY_PATH=$1
work=$(mktemp -d)
trap 'rm -rf "$work" /dev/shm/adverb-verify.$$.*' EXIT

policies=(default unpinned none mpi off none-relaxed small-pinned targets-unpinned proven odp)
modes=(inline threaded)

# Not on this device: it has no kernel that would deny a forked child its parent's queue pairs, and
# it reaches memory by its address, so that its stock regions follow unmapping as adverb's do.
absent=(--except 'peer.daemonised*' --except 'differs.*')

case ${ADVERB_SANITIZER:-} in
asan) policies=(unpinned none-relaxed proven) modes=(inline) ;;
tsan)
  policies=(unpinned small-pinned proven) modes=(threaded)
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
    at_a_time=4
    break
  fi
done

runtime=$(ldd "$verify" | awk '$1 ~ /^lib(asan|tsan)\.so/ { print $3 }')

run() { # policy or stock, mode
  local name=$1.$2 policy=$1
  local -a words=("ADVERB_LOOPBACK_FABRIC=adverb-verify.$$.$name")
  [ "$2" = inline ] || words+=(ADVERB_LOOPBACK_INLINE=0 ADVERB_LOOPBACK_REUSE=1 ADVERB_LOOPBACK_CLEAN=1)
  # What stock is compared with has none.
  [ "$1" != odp ] || words+=("ADVERB_LOOPBACK_ODP=all")
  if [ "$1" != stock ]; then
    [ -e "$here/policies/$1.json" ] && policy=$here/policies/$1.json
    words+=("ADVERB_POLICY=$policy" "LD_PRELOAD=${runtime:+$runtime:}$adverb")
  fi
  # A WRITE need not wait there for one that went another way, and a key that is not virtual goes another
  # way: what is posted behind it may land before it is refused. (Their completions: unit/test_model_queue.)
  # A peer is told of no other domain's keys, so these are such, too.
  local -a apart=()
  [ "$1" != none-relaxed ] ||
    apart=(--except 'remote.wrong_key*' --except 'remote.foreign_key*' --except 'remote.other_pd*')
  # shellcheck disable=SC2016 # expanded by the inner shell
  ${network[@]+"${network[@]}"} sh -c 'ip link set lo up 2> /dev/null; exec "$@"' sh \
    env "${words[@]}" "$verify" --device lo0 "${absent[@]}" ${apart[@]+"${apart[@]}"} --log "$work/$name" > "$work/$name.out" 2>&1
  echo $? > "$work/$name.status"
}

tell() { # policy or stock, mode
  local name=$1.$2 status
  status=$(cat "$work/$name.status")
  if [ "$status" = 0 ]; then
    echo "ok - $1 $2: right by itself"
  else
    echo "not ok - $1 $2: right by itself: exit status $status"
    grep -E 'BAD$| died | watchdog ' "$work/$name" | head -n 10 | sed 's/^/# /'
    tail -n 60 "$work/$name.out" | cut -c 1-300 | sed 's/^/# /'
  fi
}

for policy in stock "${policies[@]}"; do
  for mode in "${modes[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$at_a_time" ]; do wait -n; done
    run "$policy" "$mode" &
  done
done
wait

for mode in "${modes[@]}"; do
  tell stock "$mode"
  for policy in "${policies[@]}"; do
    tell "$policy" "$mode"
    beside=$work/stock.$mode
    if [ "$policy" = none-relaxed ]; then
      grep -vE '^remote\.(wrong_key|foreign_key|other_pd)' "$beside" > "$work/beside"
      beside=$work/beside
    fi
    "$here/verify-compare" --prefix "$policy $mode" "$beside" "$work/$policy.$mode"
  done
done
