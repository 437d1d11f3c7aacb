#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=2 mem=3072
# timeout: 1200
# Level host: all prove their queue pairs. What a false owner may do on the peer's host at this level
# preload/link/threats.md says under "What cannot be given"; the liar names the sentence behind each attack it allows.
. "$(dirname "$0")/liar_hosts_cases.sh"
attacks_beside initiator host games
attacks_beside owner host games
