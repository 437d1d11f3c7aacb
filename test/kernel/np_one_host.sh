#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Debian's perftest, the pingpongs, rping and the key-value example, unmodified, under backend np on one host.
# vm: nodes=2 swap=1024 mem=1536 device=edu
# timeout: 900
. "$(dirname "$0")/np_cases.sh"
found=$(adverb doctor --json)
if jq -e 'any(.[]; .what == "device rxe0" and .status == "ok" and (.finding | contains("READs unpinned memory")))' \
  <<< "$found" > /dev/null; then
  ok "adverb doctor has tried a device that can read through the module"
else
  not_ok "adverb doctor has tried a device that can read through the module" "it says $found"
fi
programs_run_under_np
exit 0
