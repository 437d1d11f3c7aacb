#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# What np.py has a virtual host with adverb.ko and the soft RNIC measure by the clock: a line "WHAT WHOSE ..." of each
# figure, and "counters WHAT BEFORE AFTER" of what the library counted while it was measured.
#
#   np_guest.sh READS MISSES REGISTRATIONS TURNS
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=test/kernel/lib.sh
. test/kernel/lib.sh
reads=$1 misses=$2 registrations=$3 turns=$4
bench=$ADVERB_BUILD/test/bench/bench_np
[ ! -e "$built/no_rxe" ] || { echo "np: no soft RNIC: $(cat "$built/no_rxe")" >&2; exit 1; }
load rdma_rxe
scratch=$(mktemp -d)

under() { [ "$1" = stock ] || echo "adverb run --policy $VM_REPO/test/verify/policies/np.json --"; }

# The counters of process $1, in one line.
counters() { adverb stat -p "$1" --json | jq -c .counters; }

# measured WHAT WHOSE COUNT: the program's figures; under the library also its counters around what was timed.
measured() {
  local what=$1 whose=$2 pid line
  local -a told=()
  # shellcheck disable=SC2046 # words
  coproc program { exec timeout -k 5 120 $(under "$whose") "$bench" "$what" "$3" 2> "$scratch/err"; }
  # shellcheck disable=SC2154 # made by coproc, and gone with it
  pid=$program_PID
  while read -r line <&"${program[0]}"; do
    if [ "$line" = stopped ]; then
      [ "$whose" = stock ] || told+=("$(counters "$(pgrep -P "$pid" bench_np)")")
      echo >&"${program[1]}"
    else
      echo "$what $whose $line"
    fi
  done
  wait "$pid" || { echo "np: $what, $whose: status $?: $(tail -n 5 "$scratch/err")" >&2; exit 1; }
  [ "$whose" = stock ] || [ "$what" = register ] || echo "counters $what ${told[*]}"
} 2> >(grep -v 'coproc' >&2)

for turn in $(seq "$turns"); do
  for whose in stock adverb; do
    echo "np: reads, $whose, turn $turn of $turns" >&2
    measured read "$whose" "$reads"
  done
done
echo end read
[ "$misses" = 0 ] || measured miss adverb "$misses"
echo end miss
measured register adverb "$registrations"
echo end register
exit 0
