#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072
# wrap: stock adverb
# timeout: 1500
# Debian's perftest, unmodified, both ends on one host: each program with each size, and each that can asleep.
. "$(dirname "$0")/perftest_cases.sh"
every_size_completes
events_wake_sleepers
