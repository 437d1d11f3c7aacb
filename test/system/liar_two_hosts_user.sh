#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=2 mem=3072
# timeout: 1200
# Level user: the kernel vouches for who is of the owner's user on the owner's host, and for nobody on another: there the
# liar is a user of the same number, and root.
. "$(dirname "$0")/liar_hosts_cases.sh"
attacks_beside initiator user nobody
ADVERB_LIAR_PATTERN="same number" attacks_beside initiator user root
attacks_beside owner user games
