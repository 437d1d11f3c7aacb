# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# shellcheck disable=SC2154 # programs is of lib.sh
# Sourced by device_*.sh: what is the same on every IOMMU.
drivers=(adverb_test_edu adverb_test_nic)

# IOMMU faults the kernel has logged so far; it drops most of many.
faults() {
  dmesg | grep -cE 'DMAR: \[DMA|IO_PAGE_FAULT'
}

device_cases() {
  load "${drivers[@]}"
  "$programs/np_device"
  "$programs/np_load"
  if [ "$(faults)" = 0 ]; then
    echo "ok - the IOMMU logged no fault"
  else
    echo "not ok - the IOMMU logged no fault: $(faults) logged"
  fi
  unload "${drivers[@]}"
}

# The same tests with a step left out. The last one leaves faults behind in the log.
notices() {
  must_notice 1 np_device "forgets the old translation" "the IOTLB sync" "${drivers[@]}"
  must_notice 5 np_device "forgets the old translation" "parking the IOMMU entry" "${drivers[@]}"
  must_notice 2 np_load "validated" "clearing the bits first" "${drivers[@]}"
  must_notice 3 np_load "complete" "in-place retargets" "${drivers[@]}"
  if [ "$(faults)" -gt 0 ]; then
    echo "ok - unmap and map makes the IOMMU log faults under the same load"
  else
    echo "not ok - unmap and map makes the IOMMU log faults under the same load: none logged"
  fi
}
