# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# Sourced: one end stock, the other under adverb. Under the default policy all works, and memory that
# only the own device uses is not pinned. Where the policy promises adverb at the peer and there is
# none, memory that the peer does not reach works all the same; reaching for it fails loudly.
# shellcheck source=test/system/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

default="adverb run --"
unpinned="adverb run --profile unpinned --"

options() { echo "-F -d rxe0 -x 1 -p PORT $*"; }

# with SERVER_WORDS CLIENT_WORDS COMMAND...: the command with these words before the programs.
with() {
  # shellcheck disable=SC2034 # read by words_of
  local server_run=$1 client_run=$2
  shift 2
  "$@"
}

# works NAME PROGRAM [OPTION]...: completes, and what runs under adverb has regions not pinned.
works() {
  local name=$1 program=$2
  shift 2
  pair "$name" "$program $(options "$@")" "$program $(options "$@") SERVER"
}

# works_pinned NAME PROGRAM [OPTION]...: completes, under adverb with the remote region pinned.
works_pinned() {
  local name=$1 program=$2 role why=""
  shift 2
  both_ends "$name" "$program $(options "$@")" "$program $(options "$@") SERVER" || why="exit status $?"
  for role in server client; do
    [ -z "$why" ] && [ -n "$(words_of $role)" ] && [ -e "$scratch/$role.out" ] || continue
    [ "$(counter $role hooks_calls)" -gt 0 ] 2> /dev/null || why="the $role was not intercepted"
    [ "$(counter $role regions_pinned)" -gt 0 ] 2> /dev/null || why="$why; the $role has no pinned region"
  done
  if [ -z "$why" ]; then
    ok "$name"
  else
    not_ok "$name" "$why"
    outputs
  fi
}

# fails_loudly NAME PROGRAM [OPTION]...: the stock client gets an error completion from the device, the
# server's end ends, too, and adverb's log there says why.
fails_loudly() {
  local name=$1 program=$2 status=0
  shift 2
  PAIR_LAST_WORDS=5 both_ends "$name" "$program $(options "$@")" "$program $(options "$@") SERVER" || status=$?
  if asks; then
    if [ "$status" != 124 ] && grep -qE 'Failed status 10|remote access error' "$scratch/client.out"; then
      ok "$name: the stock end gets a remote access error"
    else
      not_ok "$name: the stock end gets a remote access error" "exit status $status"
      outputs
    fi
  fi
  if serves; then
    if grep -qiE 'adverb.*no adverb was found at the peer' "$scratch/server.out"; then
      ok "$name: the log of the end under adverb says why"
    else
      not_ok "$name: the log of the end under adverb says why" "no such line"
      outputs
    fi
    if [ "$status" != 124 ]; then
      ok "$name: nothing hangs"
    else
      not_ok "$name: nothing hangs" "the server had to be killed"
    fi
  fi
}

default_policy_suits_any_peer() {
  local program
  with "" "$default" works "default policy, ib_send_bw to a stock server" ib_send_bw -n 20
  with "$default" "" works "default policy, ib_send_bw from a stock client" ib_send_bw -n 20
  for program in ib_write_bw ib_read_bw ib_atomic_bw; do
    with "" "$default" works_pinned "default policy, $program to a stock server" "$program" -n 20
    with "$default" "" works_pinned "default policy, $program from a stock client" "$program" -n 20
  done
}

own_use_of_unpinned_memory_needs_no_peer() {
  local program
  for program in ib_send_bw ib_send_lat ib_write_bw ib_read_bw; do
    with "" "$unpinned" works "unpinned, $program to a stock server" "$program" -n 20
  done
  with "$unpinned" "" works "unpinned, ib_send_bw from a stock client" ib_send_bw -n 20
  with "$unpinned" "" works "unpinned, ib_send_lat from a stock client" ib_send_lat -n 20
  with "$unpinned" "" works "unpinned, ib_send_bw sleeping, from a stock client" ib_send_bw -n 20 -e
}

stock_peers_reach_no_unpinned_memory() {
  local program
  for program in ib_write_bw ib_read_bw ib_atomic_bw; do
    with "$unpinned" "" fails_loudly "unpinned, $program from a stock client" "$program" -n 20
  done
}
