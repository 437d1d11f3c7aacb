#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Unmodified programs on soft-RoCE while adverb.ko is loaded: the demo's runs, and its own judge.
# vm: mem=3072 nodes=2 swap=512 iommu=intel,aw-bits=39 device=edu,dma_mask=0xffffffffffffffff device=e1000e
# gate: yes
# timeout: 1800
set -u
say() { # NAME STATUS REASON
  if [ "$2" = 0 ]; then echo "ok - $1"; else echo "not ok - $1: $3"; fi
}
runs=$VM_SHARE/demo
mkdir -p "$runs"

modprobe adverb
say "adverb.ko is loaded" $? "modprobe failed"
adverb doctor --json > "$runs/doctor" 2>&1
jq -e 'any(.[]; .what == "kernel module" and .status == "ok" and (.finding | startswith("not loaded") | not))' \
  "$runs/doctor" > /dev/null
say "adverb doctor tells of the module" $? "$(head -c 300 "$runs/doctor")"
adverb stat --json > "$runs/stat" 2>&1 && jq -e '.module' "$runs/stat" > /dev/null
say "adverb stat tells of the module" $? "$(head -c 300 "$runs/stat")"

# Of each kind of request one program, and those whose data is verified.
cases=(write_bw read_bw atomic_bw pingpong rping sparse)
VM_SHARE=$runs test/demo/guest.sh "${cases[@]}" | tee "$runs/tap"
/usr/bin/python3 -B test/demo/table.py "$runs" "${cases[@]}" > "$runs/table" 2>&1
say "the demo's judge has no objection" $? "$(grep '^demo: ' "$runs/table" | head -n 3 | tr '\n' ' ')"
sed 's/^/# /' "$runs/table"

rmmod adverb
say "adverb.ko can be unloaded after the programs" $? "something holds it"
