#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072
# timeout: 2400
# As remapped.sh, for twenty minutes with the C library's heap and then some with jemalloc's, which gives memory back
# in its own way. What has been called back is counted, and nothing stays leased.
. "$(dirname "$0")/lib.sh"

program=$ADVERB_BUILD/test/remapped/remapped
# As the profile "unpinned", but that nobody is given up on who stands still for a while: the host's fault, not adverb's.
cat > "$scratch/elastic.json" << 'JSON'
{ "version": 1, "recall_wait": "10000ms", "rules": [{ "register": "elastic" }, { "peers": "auto" }] }
JSON
jemalloc=$(find /usr/lib -name libjemalloc.so.2 | head -n 1)

run_for() { # NAME SECONDS PRELOAD
  local name=$1
  ADVERB_STATS_FILE=$scratch/stat.$name LD_PRELOAD=$3 adverb run --policy "$scratch/elastic.json" -- "$program" "$2" > "$scratch/$name"
  sed -n "s/^# /# $name: /p" "$scratch/$name"
  sed -n "s/^\(ok\|not ok\) - /&$name: /p" "$scratch/$name"
  grep -q 'ok - what' "$scratch/$name" || not_ok "$name: what is sent and received is what the addresses hold" "no verdict"
  count() { jq -r ".counters.$1 // .gauges.$1" "$scratch/stat.$name"; }
  local recalls uses leased
  recalls=$(count recalls) uses=$(count uses_at_recall) leased=$(count leased_bytes)
  echo "# $name: $(count posts_leased) requests leased, $recalls leases called back, $uses requests under way then, $(count recalls_overdue) overdue"
  # How many there are in that time is the machine's affair.
  [ "$recalls" -gt 0 ] && [ "$uses" -gt 0 ] &&
    ok "$name: leases were called back, with requests under way by them" ||
    not_ok "$name: leases were called back, with requests under way by them" "$recalls, $uses"
  [ "$leased" = 0 ] && ok "$name: nothing stays leased" || not_ok "$name: nothing stays leased" "$leased bytes"
}

run_for glibc "${REMAPPED_SECONDS:-1200}" ""
if [ -n "$jemalloc" ]; then
  run_for jemalloc "${REMAPPED_JEMALLOC_SECONDS:-300}" "$jemalloc"
else
  skip "jemalloc: what is sent and received is what the addresses hold" "libjemalloc.so.2 is not there"
fi
