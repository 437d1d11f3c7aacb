#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=2 mem=1024 swap=5120
# timeout: 400
# A key-value store: a table that fits memory under stock and under adverb, and one that does not under adverb.
. "$(dirname "$0")/key_value_cases.sh"
export PAIR_SECONDS=200 PAIR_LISTEN_SECONDS=180

stock_refuses 4096 8388608
table stock 64 4096 800
table own 64 4096 800
table own 1280 16384 800
exceeds_memory "a table of 1280 MiB, own" 1280
exit 0
