#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072
# wrap: stock adverb
# timeout: 420
# Debian's perftest, unmodified, both ends on one host.
. "$(dirname "$0")/perftest_cases.sh"
every_program_completes
every_size_completes
events_wake_sleepers
both_directions_at_once
several_queue_pairs
connection_manager_sets_up
