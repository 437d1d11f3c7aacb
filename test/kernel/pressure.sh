#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Memory pressure, file systems on a disk of the guest's memory, and races, with a device in software.
# vm: nodes=2 swap=512 device=edu
# timeout: 300
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"

# A file system of type $1 on a loop device, at /run/np_$1; without its tools or module the test skips.
file_system() {
  local type=$1 mount=/run/np_$1 image=/dev/shm/np_$1
  command -v "mkfs.$type" > /dev/null || return 0
  truncate -s 320M "$image"
  "mkfs.$type" -q "$image" && modprobe -q "$type" && mkdir -p "$mount" && modprobe -q loop &&
    mount -t "$type" "$(losetup -f --show "$image")" "$mount"
}

# On a file system that is not there the test says so.
file_system ext4
file_system xfs
load adverb_test_soft
"$programs/np_pressure"
status=$?
unload adverb_test_soft && exit "$status"
