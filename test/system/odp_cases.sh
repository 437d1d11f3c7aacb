# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# Sourced by the scripts of backend "odp": a program that registers half a GiB on a device that cannot page it.
# shellcheck disable=SC2034 # server_run and client_run are lib.sh's
# shellcheck source=test/system/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
mib=512
policy=$(dirname "${BASH_SOURCE[0]}")/../verify/policies/odp.json
odp="adverb run --policy $policy --"
heap=$ADVERB_BUILD/examples/heap/heap

# echoes NAME SERVER-WORDS CLIENT-WORDS: objects of a heap that is registered as a whole are sent back and forth.
echoes() {
  local name=$1 server_run=$2 client_run=$3 status=0
  both_ends "$name" "$heap -d rxe0 -p PORT -m $mib -e" "$heap -d rxe0 -p PORT -m $mib -e -n 200 SERVER" || status=$?
  sed -n "s/^client: \(.*\(registered in\|at the end\).*\)/# $name, client: \1/p" "$scratch/client.out"
  if [ "$status" = 0 ]; then
    ok "$name: every byte comes back"
  else
    not_ok "$name: every byte comes back" "exit status $status"
    outputs
  fi
}

# counts NAME ROLE COUNTER LEAST MOST
counts() {
  local value
  value=$(counter "$2" "$3")
  [ "${value:-0}" -ge "$4" ] && [ "${value:-0}" -le "$5" ] && ok "$1: $2 has $4 to $5 $3" ||
    not_ok "$1: $2 has $4 to $5 $3" "there are '$value'"
}

# What the kernel says that end $1 pins, in MiB, when its heap is registered: by the program's own look, which comes
# at that time on a machine of any load.
pinned_at_start() { sed -n "s/^$1: at the start: pinned \([0-9]*\) MiB.*/\1/p" "$scratch/$1.out"; }

# is_pinned REASON: all of it is, every byte comes back, and the log says why, once.
is_pinned() {
  local reason=$1 role pin said
  echoes odp "$odp" "$odp"
  for role in server client; do
    pin=$(pinned_at_start $role)
    [ "${pin:-0}" -ge $mib ] && ok "the $role pins its heap" || not_ok "the $role pins its heap" "VmPin is '$pin' MiB"
    counts odp $role regions_on_demand 0 0
    counts odp $role regions_pinned 1 1000
    said=$(grep -c "rxe0: regions that are to be registered \"odp\" are pinned: $reason" "$scratch/$role.out")
    [ "$said" = 1 ] && ok "the log of the $role says why, once" ||
      not_ok "the log of the $role says why, once" "$said times"
  done
}
