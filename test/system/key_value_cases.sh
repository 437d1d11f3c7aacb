# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# shellcheck disable=SC2034 # server_run and client_run are lib.sh's
# Sourced by the scripts that run examples/key-value on two hosts: tables that fit memory and tables that do
# not, with every value verified by the client.
# shellcheck source=test/system/lib.sh
. "$(dirname "$0")/lib.sh"
PAIR_PEAKS=yes
key_value=$ADVERB_BUILD/examples/key-value/key-value
# A host of scripts/vm has few processors, and they are slow: whoever waits sleeps.
asked="-e -t 4 -g 90 -z 0.99"

# words_for POLICY: what goes before the program: nothing, a profile, or the example's own policy.
words_for() {
  case $1 in
  stock) ;;
  own) echo "adverb run --policy $VM_REPO/examples/key-value/policy.json --" ;;
  *) echo "adverb run --profile $1 --" ;;
  esac
}

# What the client says of its mix, as a comment: figures of tables and policies below each other.
figures() {
  [ ! -e "$scratch/client.out" ] || sed -n "s/^client: mix:/# $1:/p" "$scratch/client.out"
}

# table POLICY MIB SLOT OPERATIONS: a full table of so many MiB is read and written under a policy.
table() {
  local name="a table of $2 MiB, $1" server_run client_run why
  server_run=$(words_for "$1") client_run=$server_run
  judge "$name" "$key_value -d rxe0 -p PORT -m $2 -s $3 -f" "$key_value -d rxe0 -p PORT $asked -n $4 SERVER"
  # What one end is told of the other has the reason for.
  if any_host_has "$why" && [ -z "$why" ]; then outputs; fi
  report "$name: every value is right"
  figures "$name"
  [ "$1" != own ] || ! asks || leased "$name"
}

leased() {
  local leased unload
  leased=$(counter client posts_leased) unload=$(counter client posts_unload)
  echo "# $1: ${leased:-no} requests went by leases, ${unload:-none} to the owner's CPU"
  if [ "${leased:-0}" -gt 0 ] && [ "${unload:-0}" -gt 0 ]; then
    ok "$1: what is hot is leased, what is not is unloaded"
  else
    not_ok "$1: what is hot is leased, what is not is unloaded" "posts_leased '$leased', posts_unload '$unload'"
  fi
}

# exceeds_memory NAME MIB: the server of the last table had most of MIB in swap and next to nothing pinned.
exceeds_memory() {
  serves || return 0
  local total swapped pin
  total=$(($(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) / 1024))
  swapped=$(sed -n 's/.*in swap \([0-9]*\) MiB$/\1/p' "$scratch/server.out")
  pin=$(peak_pin server)
  echo "# $1: $2 MiB on a host of $total MiB, ${swapped:-no} MiB of it in swap, VmPin peaked at $pin MiB"
  if [ "$2" -gt "$total" ] && [ "${swapped:-0}" -ge $(($2 - total)) ] && [ "$pin" -ge 0 ] && [ "$pin" -le 100 ]; then
    ok "$1: is larger than memory, and in swap"
  else
    not_ok "$1: is larger than memory, and in swap" "see above"
    outputs
  fi
}

# stock_refuses MIB LIMIT: an ordinary user who may lock LIMIT bytes cannot register MIB, and is told why.
stock_refuses() {
  serves || return 0
  local said status=0 name="stock: $1 MiB cannot be registered where $(($2 >> 20)) may be locked"
  said=$(timeout 200 setpriv --reuid nobody --regid nogroup --clear-groups --bounding-set=-all \
    prlimit --memlock="$2:$2" "$key_value" -d rxe0 -p 18999 -m "$1" 2>&1) || status=$?
  echo "# $said"
  if [ "$status" = 1 ] && [[ $said == *"cannot be registered"*RLIMIT_MEMLOCK*"Cannot allocate memory"* ]]; then
    ok "$name"
  else
    not_ok "$name" "exit status $status"
  fi
}
