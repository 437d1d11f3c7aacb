# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# shellcheck disable=SC2154 # programs is of lib.sh
# Sourced by device_*.sh, which are the rows of a table: what is the same on every IOMMU.
drivers=(adverb_test_edu adverb_test_nic)

# IOMMU faults the kernel has logged so far; it drops most of many.
faults() {
  dmesg | grep -c 'DMAR: \[DMA'
}

is_amd() {
  [ -e /sys/class/iommu/ivhd0 ]
}

# The IOMMU in the words of the rows, as its own registers tell.
iommu_words() {
  local directory=/sys/class/iommu/dmar0/intel-iommu cap ecap words=""
  if is_amd; then
    echo amd
    return
  fi
  cap=$((0x$(cat "$directory/cap"))) ecap=$((0x$(cat "$directory/ecap")))
  if ((ecap >> 43 & 1)); then
    words="scalable,"
    # With both, the kernel takes either.
    ((ecap >> 46 & 1)) && words+=" second stage,"
    ((ecap >> 47 & 1)) && words+=" first stage,"
  else
    words="legacy,"
  fi
  words+=" $(((cap >> 16 & 63) + 1)) bits"
  ((cap >> 7 & 1)) && words+=", caching mode"
  echo "$words"
}

# Says that the guest has the IOMMU of this row: QEMU's version begins with $1, iommu_words() says $2.
row() {
  local name="this is QEMU $1, $2" words
  words=$(iommu_words)
  if [[ "$VM_QEMU." == "$1".* && "$words" == "$2" ]]; then
    echo "ok - $name"
  else
    echo "not ok - $name: it is QEMU $VM_QEMU, $words"
  fi
}

# QEMU's AMD IOMMU reports nothing of an entry that is empty: there only the frames tell.
no_faults() {
  if is_amd; then
    return
  elif [ "$(faults)" = 0 ]; then
    echo "ok - the IOMMU logged no fault"
  else
    echo "not ok - the IOMMU logged no fault: $(faults) logged"
  fi
}

# Directed steps (those whose name contains $2); the device's addresses must need $1 bits.
directed() {
  local bits=$1 output name="the device's addresses need $1 bits"
  output=$("$programs/np_device" "${2:-}")
  echo "$output"
  if [[ "$output" =~ IOVA\ 0x([0-9a-f]+) ]] && ((0x${BASH_REMATCH[1]} >> (bits - 1) & 1)); then
    echo "ok - $name"
  else
    echo "not ok - $name: ${BASH_REMATCH[0]:-none was seen}"
  fi
}

# Directed steps with addresses of $1 bits, and load.
device_cases() {
  load "${drivers[@]}"
  directed "$1"
  "$programs/np_load"
  no_faults
  unload "${drivers[@]}"
}

# The same tests with a step left out; the last leaves faults behind in the log.
notices() {
  because="validated, but holds" must_notice 2 np_load "load" "clearing the bits first" "${drivers[@]}"
  because="reads|the device wrote" \
    must_notice 5 np_load "truncate" "parking the IOMMU entry" "${drivers[@]}"
  must_notice 1 np_device "forgets the old translation" "the IOTLB sync" "${drivers[@]}"
  must_notice 5 np_device "forgets the old translation" "parking the IOMMU entry" "${drivers[@]}"
  because="the device gave up|page [0-9]+, word [0-9]+ reads" \
    must_notice 3 np_load "load" "in-place retargets" "${drivers[@]}"
  if is_amd; then
    return
  elif [ "$(faults)" -gt 0 ]; then
    echo "ok - unmap and map makes the IOMMU log faults under the same load"
  else
    echo "not ok - unmap and map makes the IOMMU log faults under the same load: none logged"
  fi
}

# Where the kernel puts off the flush of an unmap: not in caching mode. The first makes the IOMMU log faults.
notices_flush() {
  load "${drivers[@]}"
  "$programs/np_device" "let go"
  unload "${drivers[@]}"
  must_notice 8 np_device "let go" "the flush before parking pages are freed" "${drivers[@]}"
}
