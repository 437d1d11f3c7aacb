#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072
# wrap: stock adverb
# timeout: 900
# Pingpongs that verify what they receive, both ends on one host.
. "$(dirname "$0")/pingpong_cases.sh"
pingpongs_carry_the_data
rpings_carry_the_data
