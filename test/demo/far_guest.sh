#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# The far demo's half in two guests: perftest between them over links that delay and lose, stock and under profile far
# by turns.
# usage: far_guest.sh RUNS DELAY,LOSS...: runs of each; milliseconds each way, percent each way. Host 1 prints a line
# "far DELAY LOSS PROGRAM WHOSE MIB/S PACKETS" for each run: packets of adverb's that carried it, 0 stock.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=test/system/lib.sh
. test/system/lib.sh
runs=$1
shift
modprobe sch_netem || exit 1
# So that packets of soft-RoCE have 4096 bytes of payload.
ip link set eth0 mtu 4200 || exit 1
export PAIR_SECONDS=150

link() { # DELAY LOSS
  tc qdisc del dev eth0 root 2> /dev/null
  tc qdisc add dev eth0 root netem limit 100000 delay "$1ms" loss "$2%" || exit 1
}

# measure DELAY LOSS PROGRAM WHOSE
measure() {
  # A client that ends by the clock leaves SENDs behind, which its server waits for.
  local long="-D 10 -f 3" rate packets
  [ "$3" != ib_send_bw ] || long="-n 640"
  local command="$3 -F -d rxe0 -x 1 -p PORT -s 65536 -t 64 $long"
  ADVERB_RUN=""
  [ "$4" = stock ] || ADVERB_RUN="adverb run --profile far --"
  both_ends "$3 $4" "$command" "$command SERVER" || { outputs >&2; echo "not ok - $3, $4, $1 ms, $2 %"; return; }
  asks || return 0
  rate=$(awk '$1 == 65536 { print $4 }' "$scratch/client.out")
  packets=0
  [ "$4" = stock ] || packets=$(jq '.counters | .endpoint_packets_sent + .endpoint_packets_received' "$scratch/client.json")
  echo "far $1 $2 $3 $4 ${rate:-none} ${packets:-none}"
}

for kind in "$@"; do
  IFS=, read -r delay loss <<< "$kind"
  link "$delay" "$loss"
  for program in ib_write_bw ib_read_bw ib_send_bw; do
    for ((run = 0; run < runs; run++)); do
      for whose in stock adverb; do measure "$delay" "$loss" "$program" "$whose"; done
    done
  done
done
exit 0
