# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# Sourced: the ibv_*_pingpong and rping, which check the data they receive.
# shellcheck source=test/system/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# pingpong PROGRAM NAME [OPTION]...
pingpong() {
  local program=$1 name=$2 options
  shift 2
  options="-d rxe0 -g 1 -p PORT $*"
  pair "$program $name" "$program $options" "$program $options SERVER"
}

pingpongs_carry_the_data() {
  local size
  pingpong ibv_rc_pingpong "polling" -c -n 50
  pingpong ibv_rc_pingpong "sleeping on events" -c -n 50 -e
  pingpong ibv_rc_pingpong "with the extended post API" -c -n 50 -N
  pingpong ibv_rc_pingpong "with the extended post API, sleeping on events" -c -n 50 -N -e
  for size in 1 64 4095 65536 1048576 8388608; do
    pingpong ibv_rc_pingpong "of $size bytes" -c -n 5 -r 5 -s "$size"
  done
  pingpong ibv_rc_pingpong "of 8 MiB with the extended post API" -c -n 5 -r 5 -s 8388608 -N -e
  pingpong ibv_uc_pingpong "polling" -c -n 50
  pingpong ibv_ud_pingpong "polling" -c -n 50 -s 1024
  pingpong ibv_srq_pingpong "with a shared receive queue" -c -n 50 -q 4
  pingpong ibv_srq_pingpong "with a shared receive queue, sleeping on events" -c -n 50 -q 4 -e
}

rpings_carry_the_data() {
  pair "rping validates its data" "rping -s -a SERVER -p PORT -V -C 20" "rping -c -a SERVER -p PORT -V -C 20"
  pair "rping of 64 KB messages" "rping -s -a SERVER -p PORT -V -C 10 -S 65535" "rping -c -a SERVER -p PORT -V -C 10 -S 65535"
}
