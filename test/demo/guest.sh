#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# The demo's half in the guest: every program stock, then under adverb, where what is hot is leased and where
# nothing is; what was printed, pinned, counted and traced of each goes to $VM_SHARE/WRAP/CASE.*, where scripts/demo
# makes a table of it.
# usage: guest.sh [--np] [CASE]...: all of them unless some are named. Reports progress, one line for each run.
# With --np the NIC is the soft RNIC of test/vm/rxe, and each program runs once more under backend np.
# shellcheck disable=SC2317 # cases are called by their names
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=test/system/lib.sh
. test/system/lib.sh
large=8388608 # bytes of a message: buffers of 16 MiB on each side, which perftest fills byte by byte
export PAIR_SECONDS=240 PAIR_PEAKS=yes

probe() {
  echo 0 > "$tracing"/tracing_on
  echo > "$tracing"/uprobe_events
  if test/demo/probes.py "$1" > "$scratch/probes" && cat "$scratch/probes" > "$tracing"/uprobe_events; then
    echo 1 > "$tracing"/events/demo/enable
    echo 1 > "$tracing"/tracing_on
  fi 2> "$scratch/probe.err" || echo "# no registration times: $(cat "$scratch/probe.err")"
}

unprobe() {
  echo 0 > "$tracing"/tracing_on
  echo 0 > "$tracing"/events/demo/enable
  echo > "$tracing"/uprobe_events
} 2> /dev/null

# run CASE SERVER CLIENT
run() {
  local name=$1 file
  echo > "$tracing"/trace
  pair "$@"
  for file in "$scratch"/{server,client}.*; do
    cp "$file" "$VM_SHARE/$WRAP/$name.${file##*/}"
  done
  cp "$tracing"/trace "$VM_SHARE/$WRAP/$name.trace"
}

# perf CASE PROGRAM [OPTION]...
perf() {
  local name=$1 program=$2
  shift 2
  run "$name" "$program -F -d rxe0 -x 1 -p PORT $*" "$program -F -d rxe0 -x 1 -p PORT $* SERVER"
}

case_write_bw() { perf write_bw ib_write_bw -s "$large" -n 5; }
case_read_bw() { perf read_bw ib_read_bw -s "$large" -n 5; }
case_send_bw() { perf send_bw ib_send_bw -s "$large" -n 5; }
case_atomic_bw() { perf atomic_bw ib_atomic_bw -n 200; }
case_write_lat() { perf write_lat ib_write_lat -n 200; }
case_read_lat() { perf read_lat ib_read_lat -n 200; }
case_send_lat() { perf send_lat ib_send_lat -n 200; }
case_pingpong() {
  run pingpong "ibv_rc_pingpong -c -d rxe0 -g 1 -p PORT -n 50" "ibv_rc_pingpong -c -d rxe0 -g 1 -p PORT -n 50 SERVER"
}
case_rping() { run rping "rping -s -a SERVER -p PORT -V -C 20" "rping -c -a SERVER -p PORT -V -C 20"; }
case_sparse() {
  local sparse=$ADVERB_BUILD/test/demo/demo-sparse
  run sparse "$sparse -p PORT -m 512 -n 20 SERVER" "$sparse -c -p PORT -m 512 -n 20 SERVER"
}

all_cases() {
  local case
  mkdir -p "$VM_SHARE/$WRAP"
  for case in "${cases[@]}"; do "case_$case"; done
}

ways="hot cold"
if [ "${1:-}" = --np ]; then
  shift
  ways="hot cold np"
  # shellcheck source=test/kernel/lib.sh
  . test/kernel/lib.sh
  [ ! -e "$built/no_rxe" ] || { echo "not ok - no soft RNIC: $(cat "$built/no_rxe")"; exit 1; }
  load rdma_rxe
fi
cases=("$@")
[ $# -gt 0 ] || cases=(write_bw read_bw send_bw atomic_bw write_lat read_lat send_lat pingpong rping sparse)
watch_pins || echo "# the kernel does not tell what is pinned"
export WRAP ADVERB_RUN
WRAP=stock ADVERB_RUN=""
probe "$(ldconfig -p | awk '/libibverbs\.so\.1 .*x86-64/ {print $NF; exit}' | xargs readlink -f)"
all_cases
unprobe
if ! command -v adverb > /dev/null; then
  echo "not ok - adverb is not built"
  exit 0
fi
library=$(find "$ADVERB_BUILD/preload" -name libadverb.so | head -n 1)
probe "${library:-none}"
# With so little to pin that much of what stock pins has no room: as profile unpinned, by which peers' devices reach
# what they use again and again; and so that all is as what they use once, which the owner's CPU copies; and with views,
# by which peers' devices READ with nothing pinned. An emulated processor beside others' work may take its time to answer.
declare -A backend=([hot]=elastic [cold]=none [np]=np)
for WRAP in $ways; do
  register=${backend[$WRAP]}
  cat > "$scratch/$WRAP.json" << JSON
{ "version": 1, "pinned_budget": "8MiB", "link": { "hello_timeout": "10000ms" }, "rules": [{ "register": "$register" }, { "peers": "auto" }] }
JSON
  ADVERB_RUN="adverb run --policy $scratch/$WRAP.json --"
  all_cases
done
unprobe
exit 0
