#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072
# timeout: 400
# Level host: the kernel's word is taken for nobody, so the victims prove their queue pairs to each other, too.
. "$(dirname "$0")/liar_cases.sh"
attacks_at host
