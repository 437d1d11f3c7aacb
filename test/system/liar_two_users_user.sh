#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072
# timeout: 400
# Level user: the kernel vouches for the victims to each other, as they are of one user, and not for the liar.
. "$(dirname "$0")/liar_cases.sh"
attacks_at user
