#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Life of regions, with a device in software.
# vm: nodes=2 swap=512 device=edu disk=320 disk=320
# newest: yes
# timeout: 240
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
load adverb_test_soft
"$programs/np_region"
status=$?
"$programs/np_extent" || status=1
need modprobe adverb_test_edu
"$programs/np_device" identity || status=1
unload adverb_test_soft adverb_test_edu && exit "$status"
