#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# State tables, with a device in software.
# vm: nodes=2 swap=512 device=edu disk=320 disk=320
# newest: yes
# timeout: 120
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
load adverb_test_soft
"$programs/np_table"
status=$?
unload adverb_test_soft && exit "$status"
