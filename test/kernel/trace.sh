#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Tracepoints tell what a page's way is, and how long its leaving takes.
# vm: iommu=intel,device-iotlb=on device=edu,dma_mask=0xffffffffffffffff device=pcie-root-port,id=root,chassis=1,addr=0x8 device=virtio-rng-pci,bus=root,ats=on,disable-legacy=on,iommu_platform=on
# newest: yes
# timeout: 120
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"

# told EVENT PATTERN: a line of the event says this.
told() {
  if grep -qE " adverb_$1: $2\$" <<< "$seen"; then
    echo "ok - tracepoint adverb_$1"
  else
    echo "not ok - tracepoint adverb_$1: no line says $2"
    grep -F " adverb_$1:" <<< "$seen" | head -n 5
  fi
}

load adverb_test_edu
tracing=/sys/kernel/tracing
mountpoint -q "$tracing" || need mount -t tracefs tracefs "$tracing"
need eval "echo > $tracing/trace"
need eval "echo 1 > $tracing/events/adverb/enable"
"$programs/np_device" "real bytes of a resident page"
status=$?
need eval "echo 0 > $tracing/events/adverb/enable"
seen=$(cat "$tracing/trace")
hex='0x[0-9a-f]+'
told attach "device=[0-9a-f:.]+ region=1 view=0 start=$hex end=$hex error=0 ns=[1-9][0-9]*"
told enter "region=1 start=$hex pages=1 views=0x3 shown=2"
told retarget "region=1 view=1 address=$hex iova=$hex shown"
told retarget "region=1 view=0 address=$hex iova=$hex parked"
told sync "region=1 entries=2 syncs=2 ns=[1-9][0-9]*"
told leave "region=1 start=$hex end=$hex event=[0-9]+ pages=2 ns=[1-9][0-9]*"
unload adverb_test_edu && exit "$status"
