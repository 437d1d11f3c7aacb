#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072
# timeout: 300
# Messages from and to regions whose memory changes under them, on a device that has pages, not addresses.
. "$(dirname "$0")/lib.sh"

program=$ADVERB_BUILD/test/remapped/remapped
"$program" 20 > "$scratch/stock"
grep -q '^not ok - what' "$scratch/stock" && ok "stock sends what its pages hold: the test can fail" ||
  not_ok "stock sends what its pages hold: the test can fail" "$(tail -1 "$scratch/stock")"
cat > "$scratch/none.json" << 'JSON'
{ "version": 1, "rules": [{ "register": "none" }, { "peers": "auto" }] }
JSON
# As the profile "unpinned", but that nobody is given up on who stands still for a while: the host's fault, not adverb's.
cat > "$scratch/elastic.json" << 'JSON'
{ "version": 1, "recall_wait": "10000ms", "rules": [{ "register": "elastic" }, { "peers": "auto" }] }
JSON
for policy in "$scratch/none.json" "$scratch/elastic.json"; do
  name=$(basename "$policy" .json) seconds=10
  [ "$name" = none ] || seconds=${REMAPPED_SECONDS:-25}
  ADVERB_STATS_FILE=$scratch/stat.$name ADVERB_POLICY=$policy \
    adverb run -- "$program" "$seconds" > "$scratch/adverb"
  sed -n "s/^# /# $name: /p" "$scratch/adverb"
  sed -n "s/^\(ok\|not ok\) - /&$name: /p" "$scratch/adverb"
  grep -q 'ok - what' "$scratch/adverb" || not_ok "$name: what is sent and received is what the addresses hold" "no verdict"
  count() { sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" "$scratch/stat.$name" | head -n 1; }
  echo "# $name: $(count posts_leased) requests leased, $(count recalls) leases called back, $(count uses_at_recall) requests under way then, $(count recalls_overdue) overdue"
done
[ "$(count posts_leased)" -gt 10 ] && [ "$(count recalls)" -gt 10 ] &&
  ok "what is hot has gone by leases, which were called back" ||
  not_ok "what is hot has gone by leases, which were called back" "$(count posts_leased), $(count recalls)"
