#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Memory pressure, file systems on disks of the guest's, and races, with a device in software.
# vm: nodes=2 swap=512 device=edu disk=320 disk=320
# timeout: 300
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"

file_system ext4 "$VM_DISK_0"
file_system xfs "$VM_DISK_1"
load adverb_test_soft
"$programs/np_pressure"
status=$?
umount -q /run/np_ext4 /run/np_xfs
unload adverb_test_soft && exit "$status"
