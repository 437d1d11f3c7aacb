#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# recalls.sh DIRECTORY-OF-LOOPBACK LIBADVERB WATCH REMAPPED: memory changes under leases, by calls of the C library that
# hold its allocator's lock, too (free(), malloc_trim()), and no lease is late: nobody who is to give one back waits
# for that lock. WATCH, a library, ends the program where one does (watch_allocator.c).
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cat > "$scratch/policy.json" << 'JSON'
{ "version": 1, "recall_wait": "10000ms", "rules": [{ "register": "elastic" }, { "peers": "auto" }] }
JSON
export ADVERB_POLICY=$scratch/policy.json ADVERB_STATS_FILE=$scratch/stat
"$(dirname "$0")/../stress/run.sh" "$1" "$2:$3" "$4" 6
count() { jq -r ".counters.$1" "$scratch/stat"; }
recalls=$(count recalls) late=$(count recalls_overdue)
promise="leases are back before the memory changes, whoever changes it"
if [ "$recalls" -gt 0 ] && [ "$late" = 0 ]; then
  echo "ok - $promise"
else
  echo "not ok - $promise"
  echo "# $recalls leases called back, $late of them late"
fi
