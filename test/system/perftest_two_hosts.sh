#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=2
# wrap: stock adverb
# timeout: 1500
# Debian's perftest, unmodified, across two hosts.
. "$(dirname "$0")/perftest_cases.sh"
every_program_completes
connection_manager_sets_up
[ "$WRAP" = adverb ] || exit 0
some_sizes_complete
events_wake_some_sleepers
other_transports
