#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# run.sh DIRECTORY-OF-LOOPBACK LIBADVERB SLOW [GROUP [OPTION]...]: the cases whose names begin with GROUP,
# stock with memory that is brought as it is registered, and under adverb with nothing pinned. Options are
# the program's (README.md). Finds a sanitizer's runtime in the program and puts it first.
set -u
export LD_LIBRARY_PATH=$1
adverb=$2 program=$3 group=${4-}
shift 3
[ $# = 0 ] || shift
work=$(mktemp -d)
export ADVERB_LOOPBACK_FABRIC=adverb-slow.$$
trap 'rm -rf "$work" "/dev/shm/$ADVERB_LOOPBACK_FABRIC"' EXIT

# A network of its own, so that nobody else's broker is met.
network=()
for try in "unshare -n" "unshare -rn"; do
  if $try ip link set lo up 2> /dev/null; then
    read -ra network <<< "$try"
    break
  fi
done
runtime=$(ldd "$program" | awk '$1 ~ /^lib(asan|tsan)\.so/ { print $3 }')

run() { # words for env, with the program's words behind them
  # shellcheck disable=SC2016 # expanded by the inner shell
  ${network[@]+"${network[@]}"} sh -c 'ip link set lo up 2> /dev/null; exec "$@"' sh env "$@" \
    > "$work/output" 2> "$work/errors"
  status=$?
}

# That a process of the case had regions that adverb did not pin: without adverb a comparison shows nothing.
was_there() {
  local counted
  counted=$(cat "$work"/*.json 2> /dev/null | jq -s 'map(.counters.regions_unpinned // 0) | add // 0')
  [ "${counted:-0}" -gt 0 ] || echo "not ok - adverb: $1: no process counts an unpinned region"
}

tell() { # stock or adverb, case
  sed -n "s/^# /# $1 $2: /p" "$work/output"
  # What has no meaning in stock is left out, which is no test that could not be made.
  sed -n -E -e "s/^ok - (.*) # SKIP (stock .*)/# $1: left out: \1: \2/p; t" \
    -e "s/^(ok|not ok) - /\1 - $1: /p" "$work/output"
  if ! grep -qE '^(not )?ok - ' "$work/output"; then
    echo "not ok - $1: $2: exit status $status"
  fi
  head -n 20 "$work/errors" | sed 's/^/# /'
}

mapfile -t cases < <("$program" --list | grep "^$group")
[ ${#cases[@]} != 0 ] || echo "not ok - there are cases"
for case in ${cases[@]+"${cases[@]}"}; do
  run ADVERB_POLICY=off "$program" "$@" --pinned "$case"
  tell stock "$case"
  rm -f "$work"/*.json
  run ADVERB_POLICY="${ADVERB_POLICY-unpinned}" ADVERB_STATS_FILE="$work/%p.json" \
    "LD_PRELOAD=${runtime:+$runtime:}$adverb" "$program" "$@" "$case"
  tell adverb "$case"
  grep -q '# SKIP' "$work/output" || was_there "$case"
done
