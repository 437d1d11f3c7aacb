#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=2 mem=1024 swap=5120
# timeout: 300
# A program that registers its whole heap at the start: how long that takes and what it pins, stock and with
# adverb at both ends or at one.
# shellcheck disable=SC2034 # server_run and client_run are lib.sh's
. "$(dirname "$0")/lib.sh"
PAIR_PEAKS=yes
heap=$ADVERB_BUILD/examples/heap/heap
mib=256
own="adverb run --policy $VM_REPO/examples/heap/policy.json --"

# echoes NAME SERVER-WORDS CLIENT-WORDS
echoes() {
  local name=$1 server_run=$2 client_run=$3 role words pin
  pair "$name: every byte comes back" "$heap -d rxe0 -p PORT -m $mib -e" \
    "$heap -d rxe0 -p PORT -m $mib -e -n 400 SERVER" || return
  for role in server client; do
    [ -e "$scratch/$role.out" ] || continue
    words=${role}_run pin=$(peak_pin "$role")
    sed -n "s/^$role: \(.*\(registered in\|at the end\).*\)/# $name, $role: \1/p" "$scratch/$role.out"
    if [ -z "${!words}" ]; then
      [ "$pin" -ge "$mib" ] && ok "$name: the $role pins its heap" ||
        not_ok "$name: the $role pins its heap" "VmPin peaked at $pin MiB, not $mib"
    else
      [ "$pin" -ge 0 ] && [ "$pin" -le 16 ] && ok "$name: the $role pins next to nothing" ||
        not_ok "$name: the $role pins next to nothing" "VmPin peaked at $pin MiB"
    fi
  done
}

export PAIR_SECONDS=100
echoes stock "" ""
echoes default "adverb run --" "adverb run --"
echoes "own policy" "$own" "$own"
echoes "a stock server" "" "$own"
exit 0
