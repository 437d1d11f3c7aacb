# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# Sourced by the perftest scripts: the same cases on one host and on two.
# shellcheck source=test/system/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# perftest NAME PROGRAM [OPTION]...: both ends with the same options. -F, as a virtual CPU's clock
# looks too uneven to perftest for a report.
perftest() {
  local name=$1 program=$2
  shift 2
  pair "$name" "$program -F -d rxe0 -x 1 -p PORT $*" "$program -F -d rxe0 -x 1 -p PORT $* SERVER"
}

every_program_completes() {
  local program
  for program in ib_write_bw ib_read_bw ib_send_bw ib_atomic_bw; do
    perftest "$program completes" "$program" -n 50
  done
  for program in ib_write_lat ib_read_lat ib_send_lat ib_atomic_lat; do
    perftest "$program completes" "$program" -n 50
  done
}

every_size_completes() {
  local program
  for program in ib_write_bw ib_read_bw ib_send_bw ib_write_lat ib_read_lat ib_send_lat; do
    perftest "$program 1 byte" "$program" -n 20 -s 1
    perftest "$program 2 bytes to 8 MiB" "$program" -n 5 -a
  done
}

events_wake_sleepers() {
  local program
  for program in ib_read_bw ib_send_bw ib_read_lat ib_send_lat; do # WRITE tests have no such mode
    perftest "$program sleeping on events" "$program" -n 20 -e
  done
}

both_directions_at_once() {
  local program
  for program in ib_write_bw ib_read_bw ib_send_bw; do
    perftest "$program bidirectional" "$program" -n 20 -b
  done
}

several_queue_pairs() {
  perftest "ib_write_bw with 8 queue pairs" ib_write_bw -n 20 -q 8
  perftest "ib_send_bw with a shared receive queue" ib_send_bw -n 20 -q 4 --use-srq
}

connection_manager_sets_up() {
  perftest "ib_write_bw over rdma_cm" ib_write_bw -n 20 -R
  perftest "ib_send_bw over rdma_cm" ib_send_bw -n 20 -R
}
