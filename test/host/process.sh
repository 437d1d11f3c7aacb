#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Cases of test/process that want a real kernel's device: soft-RoCE posts by system calls, and its libibverbs marks
# registered pages for fork(2). Each prints the same stock and unpinned.
# vm: mem=3072 nodes=2 swap=512 iommu=intel,aw-bits=39 device=edu,dma_mask=0xffffffffffffffff device=e1000e
# gate: yes
# timeout: 300
set -u
program=$ADVERB_BUILD/test/process/process
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
echo 24 > /proc/sys/vm/nr_hugepages

for case in pointers_early mremap threads reaper descriptors cancelled huge huge_forks; do
  stock=$(timeout 100 "$program" "$case" 2> "$scratch/stock"; echo "[status $?]")
  found=$(ADVERB_STATS_FILE=$scratch/stats timeout 100 adverb run --profile unpinned -- "$program" "$case" \
    2> "$scratch/errors"; echo "[status $?]")
  if [[ $stock != *"[status 0]" ]]; then
    echo "not ok - $case without adverb: $(tail -n 1 "$scratch/stock")"
  elif [ "$stock" != "$found" ]; then
    echo "not ok - $case: without adverb \"$stock\", with it \"$found\": $(tail -n 2 "$scratch/errors" | tr '\n' ' ')"
  elif ! jq -e '.counters.regions_unpinned > 0' "$scratch/stats" > /dev/null 2>&1; then
    echo "not ok - $case: adverb was not in the process"
  else
    echo "ok - $case: a program on soft-RoCE finds what it finds without adverb"
  fi
  rm -f "$scratch/stats"
done
echo 0 > /proc/sys/vm/nr_hugepages
