#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=2 netem="limit 1000"
# timeout: 600
# Three flows at a time over a link of 100 Mbit/s with 10 ms each way: TCP, ib_write_bw as it is, and ib_write_bw,
# which is the third flow once as it is and once under profile far. Each neighbour of adverb's keeps a quarter of its
# fair share, which is a third of what all three get, or half of what it has beside a third of its kind.
# shellcheck source=test/system/lib.sh
. "$(dirname "$0")/lib.sh"
# The link between these hosts serves no other script: netem, without anything to do, asks for hosts of its own.
# The bottleneck stands behind the sender's host, as a switch does: soft-RoCE takes a packet that its own host drops
# for a fault of the queue pair. Its queue of 470 packets of 1,500 bytes takes 56 ms, of which 36 wait.
modprobe -a cls_matchall act_mirred && modprobe ifb numifbs=1 && ip link set ifb0 up || exit 1
tc qdisc replace dev eth0 handle ffff: ingress &&
  tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev ifb0 &&
  tc qdisc replace dev ifb0 root netem rate 100mbit delay 10ms limit 470 || exit 1
seconds=20
tcp=$(dirname "$0")/tcp_flow.py

begin() { # ROLE WORDS COMMAND...
  local role=$1
  declare -g "${role}_run=$2"
  shift 2
  start "$role" "$@"
  pids+=("$started")
}

rate() { awk '$1 == 65536 { print $4 }' "$scratch/$1.out"; }

# flows WORDS: prints the MiB/s of TCP, of RC and of the third, before whose program WORDS stand.
flows() {
  local port=$next_port flow status=0
  local -a pids=() write=(ib_write_bw -F -d rxe0 -x 1 -s 65536 -t 64 -D "$seconds" -f 3 -p)
  next_port=$((next_port + 3))
  if serves; then
    begin tcp "" "$tcp" $port
    begin stock "" "${write[@]}" $((port + 1))
    begin third "$1" "${write[@]}" $((port + 2))
    for flow in 0 1 2; do await 60 listening $((port + flow)) "${pids[flow]}"; done
  fi
  vm-barrier "flows.$port" || return 1
  if asks; then
    begin tcp "" "$tcp" $port "$VM_IP_0" "$seconds"
    begin stock "" "${write[@]}" $((port + 1)) "$VM_IP_0"
    begin third "$1" "${write[@]}" $((port + 2)) "$VM_IP_0"
  fi
  for flow in "${pids[@]}"; do wait "$flow" || status=$?; done
  asks || return "$status"
  [ "$status" = 0 ] || sed 's/^/# /' "$scratch"/*.out >&2
  rates="$(< "$scratch/tcp.out") $(rate stock) $(rate third)"
  return "$status"
}

stock="" far=""
flows "" && stock=$rates
flows "adverb run --profile far --" && far=$rates
asks || exit 0
echo "# MiB/s of TCP, RC and a third of its kind: ${stock:-none}; of TCP, RC and far: ${far:-none}"
jq -c '.counters | {endpoint_packets_sent, endpoint_packets_again, endpoint_packets_parity, endpoint_packets_lost}' \
  "$scratch/third.json" | sed 's/^/# /'
promise="a neighbour of far keeps a quarter of its share"
if awk '
  NF != 3 || $3 <= 0 { exit 1 }
  NR == 1 { tcp = $1 / 2; rc = $2 / 2 }
  NR == 2 { share = ($1 + $2 + $3) / 12; kept = ($1 > tcp || $1 > share) && ($2 > rc || $2 > share) }
  END { exit !kept }' <<< "$stock
$far"; then
  ok "$promise"
else
  not_ok "$promise" "MiB/s of TCP, RC and far: ${far:-none}"
fi
# Were their losses taken for the link's, each message of 64 KiB would have a packet of parity for 16 at least.
promise="queues that overflow are not answered by parity"
parity=$(counter third endpoint_packets_parity) sent=$(counter third endpoint_packets_sent)
if [ "${sent:-0}" -gt 1000 ] && [ "$((parity * 20))" -lt "$sent" ]; then
  ok "$promise"
else
  not_ok "$promise" "${parity:-no} of ${sent:-no} packets were parity"
fi
