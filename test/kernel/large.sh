#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# A region of 4 GiB, all of it in memory.
# vm: mem=5632
# timeout: 240
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
load adverb_test_soft
"$programs/np_large"
status=$?
unload adverb_test_soft && exit "$status"
