#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072
# timeout: 300
# Backend "odp" on a device that has no on-demand paging: regions are pinned as in stock.
. "$(dirname "$0")/odp_cases.sh"
export PAIR_SECONDS=120
is_pinned "the device has no on-demand paging"
exit 0
