# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# Sourced: ibv_rc_pingpong and rping, which check the data they receive.
# shellcheck source=test/system/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

rc_pingpong() {
  local name=$1
  shift
  pair "ibv_rc_pingpong $name" "ibv_rc_pingpong -d rxe0 -g 1 -p PORT -c $*" "ibv_rc_pingpong -d rxe0 -g 1 -p PORT -c $* SERVER"
}

pingpongs_carry_the_data() {
  local size
  rc_pingpong "polling" -n 100
  rc_pingpong "sleeping on events" -n 100 -e
  rc_pingpong "with the extended post API" -n 100 -N
  for size in 1 64 4095 1048576 8388608; do
    rc_pingpong "of $size bytes" -n 5 -s "$size"
  done
}

rpings_carry_the_data() {
  pair "rping validates its data" "rping -s -a SERVER -p PORT -V -C 20" "rping -c -a SERVER -p PORT -V -C 20"
  pair "rping of 64 KB messages" "rping -s -a SERVER -p PORT -V -C 10 -S 65535" "rping -c -a SERVER -p PORT -V -C 10 -S 65535"
}
