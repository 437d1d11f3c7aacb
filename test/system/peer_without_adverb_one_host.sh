#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072
# timeout: 900
# One end under adverb, the other without, both on one host: its broker knows no such queue pair.
. "$(dirname "$0")/peer_cases.sh"
default_policy_suits_any_peer
own_use_of_unpinned_memory_needs_no_peer
stock_peers_reach_no_unpinned_memory
