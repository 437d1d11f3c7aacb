#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Pages come when they are asked for, and by themselves, with a device in software that reads.
# vm: nodes=2 swap=512 device=edu disk=320 disk=320
# timeout: 120
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
load adverb_test_soft
"$programs/np_enter"
status=$?
unload adverb_test_soft && exit "$status"
