# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# Sourced by the perftest scripts: the same cases on one host and on two. Debian's perftest posts
# through ibv_post_send on soft-RoCE, whatever its options say; the extended API is run by
# ibv_rc_pingpong and the verifier. Event mode exists for all but the WRITE programs.
# shellcheck source=test/system/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# -F, as a virtual CPU's clock looks too uneven to perftest for a report.
common="-F -d rxe0 -x 1 -p PORT"

# perftest NAME PROGRAM [OPTION]...: both ends with the same options.
perftest() {
  local name=$1 program=$2
  shift 2
  pair "$name" "$program $common $*" "$program $common $* SERVER"
}

# ib_send_lat does not run asleep: it takes the next event on the channel of both CQs for that of its last send. With a
# busy host it then waits for ever, stock, too (5 of 25 runs). ibv_rc_pingpong -e and the verifier's cq.* sleep.

every_program_completes() {
  local program
  for program in ib_{write,read,send,atomic}_{bw,lat}; do
    perftest "$program completes" "$program" -n 20
  done
}

every_size_completes() {
  local program
  for program in ib_{write,read,send}_{bw,lat}; do
    perftest "$program 1 byte" "$program" -n 20 -s 1
    perftest "$program 64 KiB" "$program" -n 20 -s 65536
    perftest "$program 8 MiB" "$program" -n 5 -s 8388608
  done
}

# Of both of these each program once and each size: perftest_every_size.sh has them all.
some_sizes_complete() {
  perftest "ib_write_bw 8 MiB" ib_write_bw -n 5 -s 8388608
  perftest "ib_read_bw 8 MiB" ib_read_bw -n 5 -s 8388608
  perftest "ib_send_bw 64 KiB" ib_send_bw -n 20 -s 65536
  perftest "ib_write_lat 64 KiB" ib_write_lat -n 20 -s 65536
  perftest "ib_read_lat 1 byte" ib_read_lat -n 20 -s 1
  perftest "ib_send_lat 1 byte" ib_send_lat -n 20 -s 1
}

events_wake_some_sleepers() {
  local program
  perftest "ib_read_bw sleeping on events, 8 MiB" ib_read_bw -n 5 -e -s 8388608
  perftest "ib_read_lat sleeping on events, 1 byte" ib_read_lat -n 20 -e -s 1
  perftest "ib_send_bw sleeping on events, 64 KiB" ib_send_bw -n 20 -e -s 65536
  for program in ib_atomic_{bw,lat}; do
    perftest "$program sleeping on events" "$program" -n 20 -e
  done
}

# Every power of two from 2 bytes to 8 MiB, in one run.
sizes_in_a_row() {
  perftest "ib_send_bw 2 bytes to 8 MiB" ib_send_bw -n 5 -a
}

events_wake_sleepers() {
  local program
  for program in ib_read_bw ib_read_lat ib_send_bw; do
    perftest "$program sleeping on events, 1 byte" "$program" -n 20 -e -s 1
    perftest "$program sleeping on events, 64 KiB" "$program" -n 20 -e -s 65536
  done
  for program in ib_atomic_{bw,lat}; do
    perftest "$program sleeping on events" "$program" -n 20 -e
  done
  for program in ib_{read,send}_bw; do
    perftest "$program sleeping on events, 8 MiB" "$program" -n 5 -e -s 8388608
  done
}

both_directions_at_once() {
  local program
  for program in ib_{write,read,send,atomic}_bw; do
    perftest "$program bidirectional" "$program" -n 20 -b
  done
}

several_queue_pairs() {
  perftest "ib_write_bw with 8 queue pairs" ib_write_bw -n 5 -q 8
  perftest "ib_send_bw with a shared receive queue" ib_send_bw -n 20 -q 4 --use-srq
}

other_transports() {
  local program
  for program in ib_write_{bw,lat}; do
    perftest "$program over UC" "$program" -n 20 -c UC
  done
  # Nobody sends again what the queues between the hosts drop, and the server would wait for it: so
  # few packets that no queue is ever full.
  for program in ib_send_{bw,lat}; do
    perftest "$program over UC" "$program" -n 20 -c UC -s 4096
  done
  for program in ib_send_{bw,lat}; do
    perftest "$program over UD" "$program" -n 20 -c UD -s 1024
  done
}

connection_manager_sets_up() {
  local program
  for program in ib_{write,read,send}_bw; do
    perftest "$program over rdma_cm" "$program" -n 20 -R
  done
}
