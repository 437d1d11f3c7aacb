#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Changes of mappings, told to who watches them.
# vm: nodes=2 swap=512 device=edu disk=320 disk=320
# newest: yes
# timeout: 240
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
need modprobe loop
# shellcheck disable=SC2119 # no drivers
load
"$programs/np_watch"
status=$?
# shellcheck disable=SC2119
unload && exit "$status"
