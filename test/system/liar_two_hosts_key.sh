#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=2 mem=3072
# timeout: 1200
# Level key: the liar is one of those who have it, and, in attacks of this level alone, one who has not. Left out:
# - who has proven nothing has not all receives: who has shown the key has shown enough to keep what he opens
#   (owner_bounds.cpp), and who has not opens nothing.
# - who has proven nothing has not all links: the same; who has not the key tries it in an attack of its own.
. "$(dirname "$0")/liar_hosts_cases.sh"
attacks_beside initiator key games --without "who has proven nothing has not all receives" \
  --without "who has proven nothing has not all links"
attacks_beside owner key games
