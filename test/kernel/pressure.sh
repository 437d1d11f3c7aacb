#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Memory pressure, on a host so small that a GiB is several times its memory, and file systems on disks.
# vm: mem=320 swap=1536 disk=320 disk=320
# timeout: 600
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"

file_system ext4 "$VM_DISK_0"
file_system xfs "$VM_DISK_1"
load adverb_test_soft
"$programs/np_pressure"
status=$?
umount -q /run/np_ext4 /run/np_xfs
unload adverb_test_soft && exit "$status"
