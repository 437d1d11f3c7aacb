#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=2
# timeout: 900
# One end under adverb, the other without, on two hosts: nobody answers for the stock one.
. "$(dirname "$0")/peer_cases.sh"
default_policy_suits_any_peer
own_use_of_unpinned_memory_needs_no_peer
stock_peers_reach_no_unpinned_memory
