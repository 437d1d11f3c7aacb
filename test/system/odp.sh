#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072 kernel=7.2
# timeout: 300
# Backend "odp" on a kernel whose soft-RoCE says that it pages on demand, and misplaces bytes: all is pinned,
# and comes back right.
. "$(dirname "$0")/odp_cases.sh"
export PAIR_SECONDS=120

ibv_devinfo -v -d rxe0 | grep -qw ODP_SUPPORT && ok "the device says that it pages on demand" ||
  not_ok "the device says that it pages on demand" "$(uname -r)"
is_pinned "soft-RoCE misplaces bytes of on-demand memory"
exit 0
