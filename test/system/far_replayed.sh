#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=2 netem="delay 10ms loss 0.5%"
# timeout: 600
# examples/key-value under profile far between two hosts whose link delays and loses, while packets of it come once more:
# soon, among those of the same messages, and 2 s later, when their messages are over and their buffers hold others. No
# value is wrong, and the packets are counted.
# shellcheck source=test/system/lib.sh
. "$(dirname "$0")/lib.sh"
key_value=$ADVERB_BUILD/examples/key-value/key-value
replay=$(dirname "$0")/replay.py
ADVERB_RUN="adverb run --profile far --"
PAIR_SECONDS=240
role=server
! asks || role=client
runs=0

counted() { counter $role "endpoint_packets_$1"; }

# Whether packets have come that the peer has not sent, which is known of two ends that have ended: at least 500, each
# of them counted as one that was there or that came late.
are_known() {
  local sent=$VM_SHARE/.far_replayed.$((++runs)) strange
  counted sent > "$sent.$role"
  vm-barrier "replayed.$runs" || return 1
  asks || local peer=client
  strange=$(($(counted received) - $(< "$sent.${peer:-server}")))
  echo "# $role: $strange packets came again, $(counted duplicate) were there, $(counted late) were late"
  [ $strange -gt 500 ] && [ $(($(counted duplicate) + $(counted late))) -ge $strange ]
}

# replayed SECONDS NAME
replayed() {
  local why="" status=0
  "$replay" eth0 4 "$1" > "$scratch/replayed" &
  local replaying=$!
  both_ends "$2" "$key_value -d rxe0 -x 1 -p PORT -m 4 -s 4096 -f" \
    "$key_value -d rxe0 -x 1 -p PORT -e -l -t 8 -n 3000 -g 50 SERVER" || status=$?
  kill $replaying
  wait $replaying
  [ "$status" = 0 ] || why="exit status $status"
  why+=$(misread)
  are_known || why+="; packets that came again are not known, of $(< "$scratch/replayed")"
  if [ -z "$why" ]; then ok "$2, $role"; else not_ok "$2, $role" "$why" && outputs; fi
}

replayed 0.005 "packets that come again at once are known, and every value is right"
replayed 2 "packets of messages that are over land nowhere, and every value is right"
