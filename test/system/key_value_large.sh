#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=2 mem=1024 swap=5120
# timeout: 2400
# A key-value store whose table has four times the memory of its host, every slot of it written.
. "$(dirname "$0")/key_value_cases.sh"
export PAIR_SECONDS=1000 PAIR_LISTEN_SECONDS=800

stock_refuses 4096 805306368
table stock 256 16384 3000
table unpinned 256 16384 3000
table own 256 16384 3000
table unpinned 4096 16384 3000
exceeds_memory "a table of 4096 MiB, unpinned" 4096
table own 4096 16384 3000
exceeds_memory "a table of 4096 MiB, own" 4096
exit 0
