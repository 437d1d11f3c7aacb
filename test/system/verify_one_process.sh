#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072
# timeout: 900
# The verifier with both sides in one process (a program that talks to itself), stock and under adverb.
. "$(dirname "$0")/verify_cases.sh"
verify_both self both targets-unpinned
