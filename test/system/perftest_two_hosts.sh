#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=2
# wrap: stock adverb
# timeout: 600
# Debian's perftest, unmodified, across two hosts.
. "$(dirname "$0")/perftest_cases.sh"
every_program_completes
every_size_completes
events_wake_sleepers
connection_manager_sets_up
