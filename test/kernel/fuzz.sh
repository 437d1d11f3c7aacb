#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Bad ioctls and netlink messages; the guest panics on any splat.
# vm: nodes=2 swap=512 device=edu disk=320 disk=320
# newest: yes
# timeout: 240
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
load adverb_test_soft
"$programs/np_fuzz"
status=$?
unload adverb_test_soft && exit "$status"
