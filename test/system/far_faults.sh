#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=2 netem="delay 10ms loss 0.5%"
# timeout: 900
# examples/key-value under profile far between two hosts whose link delays and loses, with what stock would not
# outlive: the path is cut for 30 s, and the server is stopped for as long. Both are a delay, and every value is right.
# A server that is killed is no delay: its client fails as a stock one does.
# shellcheck source=test/system/lib.sh
. "$(dirname "$0")/lib.sh"
key_value=$ADVERB_BUILD/examples/key-value/key-value
ADVERB_RUN="adverb run --profile far --"
PAIR_SECONDS=240
fault_seconds=30

link() { # LOSS in percent
  tc qdisc replace dev eth0 root netem limit 100000 delay 10ms loss "$1%" || exit 1
}
begun() { grep -qs '^client: load:' "$scratch/client.out"; }
sign=$VM_SHARE/.far_faults
seen() { [ -e "$sign.$1" ]; }

# When the client has begun to mix reads and writes.
cut() { asks && await 180 begun && link 100 && nap $fault_seconds; link 0.5; }
meets() { # FAULT: true on the host that serves once the client is there
  if asks; then
    await 180 begun && : > "$sign.$1"
  else
    await 180 seen "$1"
  fi
  serves
}
stop() { meets stop && pkill -STOP -x key-value && nap $fault_seconds && pkill -CONT -x key-value; }

# under FAULT: both ends, with the fault meanwhile.
under() {
  link 0.5
  rm -f "$scratch"/client.* # begun() is of this run
  "$1" &
  local fault=$! status=0
  both_ends "$1" "$key_value -d rxe0 -x 1 -p PORT -m 4 -s 4096 -f" \
    "$key_value -d rxe0 -x 1 -p PORT -e -l -t 8 -n 3000 -g 50 SERVER" || status=$?
  wait $fault
  return $status
}

# outlives FAULT NAME
outlives() {
  local why="" status=0
  under "$1" || status=$?
  [ "$status" = 0 ] || why="exit status $status"
  why+=$(misread)
  if asks && [ -z "$why" ]; then
    jq -e '.counters | .posts_steered > 3000 and .endpoint_packets_lost > 0' "$scratch/client.json" > /dev/null ||
      why="counters of the client: $(jq -c '.counters | {posts_steered, endpoint_packets_lost}' "$scratch/client.json" 2>&1)"
    sed -n 's/^client: mix:/# mix:/p' "$scratch/client.out"
  fi
  if [ -z "$why" ]; then ok "$2"; else not_ok "$2" "$why" && outputs; fi
}

outlives cut "a path that is cut for $fault_seconds s is a delay, and every value is right"
outlives stop "a server that is stopped for $fault_seconds s is a delay, and every value is right"

killed() { meets killed && pkill -KILL -x key-value; }
name="a server that is killed fails its client's requests"
under killed
status=$?
if asks; then
  if [ $status != 0 ] && grep -q "transport retry counter exceeded" "$scratch/client.out"; then
    ok "$name"
  else
    not_ok "$name" "exit status $status" && outputs
  fi
fi
