#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=2
# timeout: 480
# Level user, and of the attacks those that are about which host somebody is on, a thief and a relay: minutes, as emulated
# hosts have them. All of them, at each level, are in liar_two_hosts_*.sh.
. "$(dirname "$0")/liar_hosts_cases.sh"
pattern=${ADVERB_LIAR_PATTERN:-}
export ADVERB_LIAR_PATTERN=${pattern:-victims prove|another host|wrong numbers|another\'s handles}
attacks_beside initiator user nobody
export ADVERB_LIAR_PATTERN=${pattern:-who is on another host|key of the owner\'s slots|alters nothing}
attacks_beside owner user games
