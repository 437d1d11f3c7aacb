#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# The tests notice when a step of the protocol is missing.
# vm: nodes=2 swap=512 device=edu
# timeout: 240
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
quiet 2> /dev/null
must_notice 4 np_leave "MADV_FREE" "marking pages dirty" adverb_test_soft
