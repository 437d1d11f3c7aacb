# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# shellcheck disable=SC2034 # PAIR_PEAKS is lib.sh's
# Sourced by the scripts that run unmodified programs under backend np over the soft RNIC, on one host and on two: their
# data right, next to nothing pinned, and READs carried by the NIC through views.
# shellcheck source=test/kernel/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_soft_rnic
load rdma_rxe
# shellcheck source=test/system/perftest_cases.sh
. "$(dirname "${BASH_SOURCE[0]}")/../system/perftest_cases.sh"
# shellcheck source=test/system/pingpong_cases.sh
. "$(dirname "${BASH_SOURCE[0]}")/../system/pingpong_cases.sh"
PAIR_PEAKS=yes
budget=16 # MiB that may be pinned
cat > "$scratch/np.json" << JSON
{ "version": 1, "pinned_budget": "${budget}MiB", "rules": [{ "register": "np" }, { "peers": "auto" }] }
JSON
ADVERB_RUN="adverb run --policy $scratch/np.json --"

# What of the last pair's READs went by views, as TAP: NAME, and how many have to.
reads_by_views() {
  asks || return 0
  local views missed unload
  views=$(counter client posts_np_read) missed=$(counter client reads_missed) unload=$(counter client posts_unload)
  echo "# $1: ${views:-no} READs by views, ${missed:-none} of them missed pages, ${unload:-none} went to the owner's CPU"
  if [ "${views:-0}" -ge "$2" ]; then
    ok "$1: the NIC READs what nobody has pinned"
  else
    not_ok "$1: the NIC READs what nobody has pinned" "posts_np_read is '$views', not $2"
  fi
}

# Each end on this host that ran in the last pair pinned no more than it may: the budget, what requests under way force,
# and 2 MiB that are the links' and the rounding's.
pins_its_budget() {
  local role pin forced
  for role in server client; do
    [ -e "$scratch/$role.out" ] || continue
    pin=$(peak_pin "$role") forced=$(counter "$role" forced_peak_bytes)
    if [ -n "$forced" ] && [ "$pin" -ge 0 ] && [ "$pin" -le $((budget + (forced >> 20) + 2)) ]; then
      ok "$1: the $role pins at most $budget MiB and what is forced"
    else
      not_ok "$1: the $role pins at most $budget MiB and what is forced" \
        "VmPin peaked at $pin MiB, forced_peak_bytes is '$forced'"
    fi
  done
}

# table MIB OPERATIONS: the key-value example, whose client verifies each value.
table() {
  local key_value=$ADVERB_BUILD/examples/key-value/key-value
  # A host of scripts/vm has few processors: whoever waits sleeps.
  pair "key-value, $1 MiB" "$key_value -d rxe0 -p PORT -m $1 -s 4096 -f" \
    "$key_value -d rxe0 -p PORT -e -t 4 -g 90 -z 0.99 -n $2 SERVER"
  reads_by_views "key-value, $1 MiB" 1
  pins_its_budget "key-value, $1 MiB"
}

programs_run_under_np() {
  perftest "ib_read_bw, 64 KiB" ib_read_bw -n 1000 -s 65536
  reads_by_views "ib_read_bw, 64 KiB" 500
  pins_its_budget "ib_read_bw, 64 KiB"
  perftest "ib_read_bw, 8 MiB" ib_read_bw -n 10 -s 8388608 -q 2
  reads_by_views "ib_read_bw, 8 MiB" 1
  pins_its_budget "ib_read_bw, 8 MiB"
  perftest "ib_read_lat, 4 KiB" ib_read_lat -n 1000 -s 4096
  reads_by_views "ib_read_lat, 4 KiB" 500
  perftest "ib_read_lat, 1 byte, sleeping on events" ib_read_lat -n 500 -s 1 -e
  reads_by_views "ib_read_lat, 1 byte, sleeping on events" 100
  perftest "ib_write_bw, 64 KiB" ib_write_bw -n 100 -s 65536
  pins_its_budget "ib_write_bw, 64 KiB"
  perftest "ib_write_lat" ib_write_lat -n 100
  perftest "ib_send_bw" ib_send_bw -n 100
  perftest "ib_atomic_bw" ib_atomic_bw -n 50
  pingpong ibv_rc_pingpong "polling" -c -n 50
  pingpong ibv_rc_pingpong "with the extended post API, sleeping on events" -c -n 50 -N -e
  pingpong ibv_ud_pingpong "polling" -c -n 50 -s 1024
  pingpong ibv_srq_pingpong "with a shared receive queue" -c -n 50 -q 4
  rpings_carry_the_data
  table 64 800
}
