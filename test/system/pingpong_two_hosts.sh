#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=2
# wrap: stock adverb
# timeout: 900
# Pingpongs that verify what they receive, across two hosts.
. "$(dirname "$0")/pingpong_cases.sh"
pingpongs_carry_the_data
rpings_carry_the_data
