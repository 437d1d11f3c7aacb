#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# The demo's half in the guest: every program stock, then under adverb, where what is hot is leased and where
# nothing is; what was printed, pinned, counted and traced of each goes to $VM_SHARE/WRAP/CASE.*, where scripts/demo
# makes a table of it.
# Reports progress, one line for each run.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=test/system/lib.sh
. test/system/lib.sh
tracing=/sys/kernel/tracing
large=16777216 # bytes of a message: buffers of 32 MiB on each side, which perftest fills byte by byte
export PAIR_SECONDS=240 PAIR_PEAKS=yes

probe() {
  echo 0 > $tracing/tracing_on
  echo > $tracing/uprobe_events
  if test/demo/probes.py "$1" > "$scratch/probes" && cat "$scratch/probes" > $tracing/uprobe_events; then
    echo 1 > $tracing/events/demo/enable
    echo 1 > $tracing/tracing_on
  fi 2> "$scratch/probe.err" || echo "# no registration times: $(cat "$scratch/probe.err")"
}

unprobe() {
  echo 0 > $tracing/tracing_on
  echo 0 > $tracing/events/demo/enable
  echo > $tracing/uprobe_events
} 2> /dev/null

# run CASE SERVER CLIENT
run() {
  local name=$1 file
  echo > $tracing/trace
  pair "$@"
  for file in "$scratch"/{server,client}.*; do
    cp "$file" "$VM_SHARE/$WRAP/$name.${file##*/}"
  done
  cp $tracing/trace "$VM_SHARE/$WRAP/$name.trace"
}

# perf CASE PROGRAM [OPTION]...
perf() {
  local name=$1 program=$2
  shift 2
  run "$name" "$program -F -d rxe0 -x 1 -p PORT $*" "$program -F -d rxe0 -x 1 -p PORT $* SERVER"
}

# lat CASE PROGRAM: once more where perftest could not make out the virtual CPU's clock.
lat() {
  for _ in 1 2 3 4; do
    perf "$1" "$2" -n 200 > "$scratch/said"
    grep -q ' inf ' "$VM_SHARE/$WRAP/$1.client.out" || break
  done
  cat "$scratch/said"
}

all_cases() {
  mkdir -p "$VM_SHARE/$WRAP"
  perf write_bw ib_write_bw -s $large -n 5
  perf read_bw ib_read_bw -s $large -n 5
  perf send_bw ib_send_bw -s $large -n 5
  perf atomic_bw ib_atomic_bw -n 200
  lat write_lat ib_write_lat
  lat read_lat ib_read_lat
  lat send_lat ib_send_lat
  run pingpong "ibv_rc_pingpong -c -d rxe0 -g 1 -p PORT -n 50" "ibv_rc_pingpong -c -d rxe0 -g 1 -p PORT -n 50 SERVER"
  run rping "rping -s -a SERVER -p PORT -V -C 20" "rping -c -a SERVER -p PORT -V -C 20"
  local sparse=$ADVERB_BUILD/test/demo/demo-sparse
  run sparse "$sparse -p PORT -m 512 -n 20 SERVER" "$sparse -c -p PORT -m 512 -n 20 SERVER"
}

mount -t tracefs tracefs $tracing 2> /dev/null
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
# what they use again and again; and so that all is as what they use once, which the owner's CPU copies.
for WRAP in hot cold; do
  register=$([ "$WRAP" = hot ] && echo elastic || echo none)
  cat > "$scratch/$WRAP.json" << JSON
{ "version": 1, "pinned_budget": "16MiB", "rules": [{ "register": "$register" }, { "peers": "auto" }] }
JSON
  ADVERB_RUN="adverb run --policy $scratch/$WRAP.json --"
  all_cases
done
unprobe
exit 0
