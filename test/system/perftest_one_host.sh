#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072
# wrap: stock adverb
# timeout: 1500
# Debian's perftest, unmodified, both ends on one host. Stock shows that the cases themselves run.
. "$(dirname "$0")/perftest_cases.sh"
every_program_completes
connection_manager_sets_up
other_transports
[ "$WRAP" = adverb ] || exit 0
several_queue_pairs
some_sizes_complete
sizes_in_a_row
events_wake_some_sleepers
both_directions_at_once
