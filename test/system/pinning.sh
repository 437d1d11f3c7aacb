#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072
# wrap: stock adverb
# timeout: 420
# What the kernel says is pinned while unmodified programs run: all of it under stock, next to
# nothing under adverb, where the counters of both ends must show that the run was intercepted.
. "$(dirname "$0")/perftest_cases.sh"
PAIR_PEAKS=yes

most=16 # MiB that may be pinned under adverb
if [ "$WRAP" = adverb ]; then
  cat > "$scratch/budget.json" << JSON
{ "version": 1, "pinned_budget": "${most}MiB", "rules": [{ "register": "elastic" }, { "peers": "auto" }] }
JSON
  ADVERB_RUN="adverb run --policy $scratch/budget.json --"
fi

# pins_at_most NAME MIB: says of end $role of the last run whether it was measured and pinned MIB at most.
pins_at_most() {
  local pin
  pin=$(peak_pin "$role")
  if [ "$pin" = -1 ]; then
    not_ok "$1" "what it pinned was not measured"
  elif [ "$pin" -le "$2" ]; then
    ok "$1"
  else
    not_ok "$1" "VmPin peaked at $pin MiB, not at $2"
  fi
}

# pins_as_promised PROGRAM MIB [OPTION]...: MIB is what each end pins under stock, for the time of the run.
pins_as_promised() {
  local program=$1 expected=$2 role pin
  shift 2
  perftest "$program runs" "$program" "$@" || return
  for role in server client; do
    pin=$(peak_pin "$role")
    if [ "$WRAP" = stock ]; then
      [ "$pin" -ge "$expected" ] && ok "$program $role pins its buffer" ||
        not_ok "$program $role pins its buffer" "VmPin peaked at $pin MiB, not $expected"
    else
      pins_at_most "$program $role pins at most $most MiB" "$most"
      [ "$(counter "$role" regions_unpinned)" -gt 0 ] 2> /dev/null && ok "$program $role is intercepted" ||
        not_ok "$program $role is intercepted" "regions_unpinned is '$(counter "$role" regions_unpinned)'"
    fi
  done
}

# Messages of 8 MiB have to be backed while they are under way, receives from their post on: beside
# the budget that is all that SEND programs pin, and adverb's statistics show it.
sends_pin_the_budget_and_what_is_forced() {
  local role pin forced
  perftest "ib_send_bw runs" ib_send_bw -s 8388608 -n 5 -r 4 -q 4 || return
  for role in server client; do
    pin=$(peak_pin "$role")
    echo "# ib_send_bw $role: VmPin peaked at $pin MiB"
    if [ "$WRAP" = stock ]; then
      [ "$pin" -ge 64 ] && ok "ib_send_bw $role pins its buffer" ||
        not_ok "ib_send_bw $role pins its buffer" "VmPin peaked at $pin MiB, not 64"
      continue
    fi
    forced=$(($(counter "$role" forced_peak_bytes) >> 20))
    [ "$forced" -gt 0 ] && ok "ib_send_bw $role shows what is forced" ||
      not_ok "ib_send_bw $role shows what is forced" "forced_peak_bytes is 0 with VmPin $pin MiB"
    # 2 MiB are the links' and the rounding's.
    pins_at_most "ib_send_bw $role pins the budget and what is forced" $((most + forced + 2))
  done
}

export PAIR_SECONDS=120
pins_as_promised ib_write_bw 64 -s 8388608 -n 5 -q 4
pins_as_promised ib_read_bw 64 -s 8388608 -n 5 -q 4
# It registers a page of each queue pair, and the kernel's figure is in MiB here.
[ "$WRAP" = stock ] || pins_as_promised ib_atomic_bw 0 -n 100
sends_pin_the_budget_and_what_is_forced
if [ "$WRAP" = adverb ]; then
  # Two processes share a sixteenth of the host's memory, and what is not theirs alone is leases' at half of that.
  most=$(($(awk '/^MemTotal/ { print $2 }' /proc/meminfo) / 1024 / 16))
  ADVERB_RUN="adverb run --profile unpinned --"
  pins_as_promised ib_write_bw 64 -s 8388608 -n 5 -q 4
fi
