#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Pages leave in every way there is, with a device in software that goes on reading and writing.
# vm: nodes=2 swap=512 device=edu disk=320 disk=320
# timeout: 300
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
load adverb_test_soft
"$programs/np_leave"
status=$?
unload adverb_test_soft && exit "$status"
