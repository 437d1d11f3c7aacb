#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# doors.sh DIRECTORY-OF-LOOPBACK LIBADVERB-TOY LIBADVERB-BARE VERIFY: what comes through the doors.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
toy=$2 bare=$3 verify=$4
export LD_LIBRARY_PATH=$1
export ADVERB_LOOPBACK_FABRIC=adverb-doors.$$ ADVERB_POLICY=unpinned
work=$(mktemp -d)
trap 'rm -rf "$work" "/dev/shm/$ADVERB_LOOPBACK_FABRIC"' EXIT
runtime=$(ldd "$verify" | awk '$1 ~ /^lib(asan|tsan)\.so/ { print $3 }')

check() { # NAME COMMAND...
  local name=$1
  shift
  if "$@"; then echo "ok - $name"; else echo "not ok - $name"; fi
}

run() { # LOG LIBRARY OPTIONS-OF-VERIFY...
  local log=$1 library=$2
  shift 2
  env ADVERB_STATS_FILE="$work/$log.stats.%p" ${library:+LD_PRELOAD="${runtime:+$runtime:}$library"} \
    "$verify" --device lo0 "$@" --log "$work/$log" > "$work/$log.out" 2>&1
}

# The sum of a counter over all processes of a run.
counted() { # LOG COUNTER
  cat "$work/$1".stats.* 2> /dev/null | awk -v name="\"$2\":" '$1 == name { sum += $2 } END { print sum + 0 }'
}

mapfile -t others < <("$verify" --list | cut -d. -f1 | sort -u | grep -vxE 'data|order|cq' | sed 's/.*/--except\n&.*/')
check "the toy's run is right by itself" run toy "$toy" "${others[@]}"
run stock "" "${others[@]}"
check "no request was carried by the way behind the toy" \
  test "$(counted toy posts_unload_bytes)" -lt "$(counted toy responder_bytes)"
"$here/../verify/verify-compare" --prefix "with the toy way: " "$work/stock" "$work/toy"

# Small regions are the toy backend's, the others pinned.
echo '{"version": 1, "rules": [{"name": "toys", "register": "toy"}]}' > "$work/toys.json"
export ADVERB_POLICY=$work/toys.json
# It lends nothing, so atomics on its regions end in the device's error.
others+=(--except '*atomic*' --except 'data.rc.fetch_add' --except 'data.rc.cmp_swap')
check "the toy backend's run is right by itself" run backend "$toy" "${others[@]}"
run stock-backend "" "${others[@]}"
check "what peers do to its regions is carried" test "$(counted backend responder_bytes)" -gt 0
check "no other backend makes their elements usable" \
  test "$(counted backend windows_registered) $(counted backend staging_copies)" = "0 0"
"$here/../verify/verify-compare" --prefix "with the toy backend: " "$work/stock-backend" "$work/backend"
export ADVERB_POLICY=unpinned

# Nothing carries the request, so it reaches the device with its reserved key.
run bare "$bare" --case data.rc.write
check "without unload's row and file the library loads" test -s "$work/bare"
check "nothing of the way is in it" sh -c "! nm -C '$bare' | grep -q 'Unload::'"
check "a request on a virtual key gets the device's own error" grep -q 'REM_ACCESS_ERR' "$work/bare"
