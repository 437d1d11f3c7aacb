#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# The library with the module as its monitor: what it hears, and that what is leased meanwhile is what the addresses hold.
# vm: hosts=1 mem=3072
# timeout: 300
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2119 # no drivers
load
scratch=$(mktemp -d)
ADVERB_TAP_FILE=$scratch/tap "$ADVERB_BUILD/test/unit/test_module_monitor" > "$scratch/said" 2>&1
status=$?
cat "$scratch/tap" "$scratch/said"
[ -s "$scratch/tap" ] || echo "not ok - the module's monitor: its tests did not run"

cat > "$scratch/elastic.json" << 'JSON'
{ "version": 1, "recall_wait": "10000ms", "rules": [{ "register": "elastic" }, { "peers": "auto" }] }
JSON
# of program $1's run: the counter $2
count() { sed -n "s/.*\"$2\": *\([0-9]*\).*/\1/p" "$scratch/$1.stat" | head -n 1; }
name="memory that changes under leases, heard of by the module"
ADVERB_STATS_FILE=$scratch/remapped.stat ADVERB_POLICY=$scratch/elastic.json ADVERB_LOG_FILE=$scratch/log ADVERB_LOG=debug \
  adverb run -- "$ADVERB_BUILD/test/remapped/remapped" "${REMAPPED_SECONDS:-25}" > "$scratch/remapped"
sed -n "s/^# /# /p" "$scratch/remapped"
echo "# $(count remapped posts_leased) requests leased, $(count remapped recalls) leases called back, $(count remapped uses_at_recall) requests under way then, $(count remapped recalls_overdue) overdue"
if ! grep -q 'adverb.ko observes changes of mappings' "$scratch/log"; then
  echo "not ok - $name: another monitor was chosen"
elif ! grep -q '^ok - what' "$scratch/remapped" || grep -q '^not ok' "$scratch/remapped"; then
  echo "not ok - $name: $(tail -n 1 "$scratch/remapped")"
elif [ "$(count remapped posts_leased)" -gt 10 ] && [ "$(count remapped recalls)" -gt 10 ]; then
  echo "ok - $name"
else
  echo "not ok - $name: $(count remapped posts_leased) requests leased, $(count remapped recalls) called back"
fi
rm -rf "$scratch"
# shellcheck disable=SC2119
unload && exit "$status"
