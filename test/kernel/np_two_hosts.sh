#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Debian's perftest, the pingpongs, rping and the key-value example, unmodified, under backend np across two hosts.
# vm: hosts=2 nodes=2 swap=1024 mem=1536 device=edu
# timeout: 900
. "$(dirname "$0")/np_cases.sh"
programs_run_under_np
exit 0
