#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# loopback.sh DIRECTORY-OF-LOOPBACK LIBADVERB VERIFY: every case on the loopback device, stock beside
# adverb, one TAP line for each. Finds a sanitizer's runtime in the program and puts it first. With TSan
# only the families in which threads meet: it is the slowest, and bytes are compared without it.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
adverb=$2 verify=$3
export LD_LIBRARY_PATH=$1
export ADVERB_LOOPBACK_FABRIC=adverb-verify.$$
work=$(mktemp -d)
trap 'rm -rf "$work" "/dev/shm/$ADVERB_LOOPBACK_FABRIC"' EXIT

# Not on this device: it has no kernel that would deny a forked child its parent's queue pairs, and
# it reaches memory by its address, so that its stock regions follow unmapping as adverb's do.
absent=(--except 'peer.daemonised*' --except 'differs.*')

if [ "${ADVERB_SANITIZER:-}" = tsan ]; then
  mapfile -t families < <("$verify" --list | cut -d. -f1 | sort -u | grep -vxE 'order|state|cq')
  for family in "${families[@]}"; do absent+=(--except "$family.*"); done
  echo "# left out: ${families[*]}"
fi

run() { # log [words before the program]
  local log=$1 status=0
  shift
  "$@" "$verify" --device lo0 "${absent[@]}" --log "$work/$log" > "$work/out" 2>&1 || status=$?
  if [ "$status" = 0 ]; then
    echo "ok - $log run is right by itself"
  else
    echo "not ok - $log run is right by itself: exit status $status"
    grep -E 'BAD$| died | watchdog ' "$work/$log" | head -n 10 | sed 's/^/# /'
    tail -n 120 "$work/out" | sed 's/^/# /'
  fi
}

runtime=$(ldd "$verify" | awk '$1 ~ /^lib(asan|tsan)\.so/ { print $3 }')
run stock
ADVERB_POLICY=unpinned run adverb env LD_PRELOAD="${runtime:+$runtime:}$adverb"
"$here/verify-compare" "$work/stock" "$work/adverb"
