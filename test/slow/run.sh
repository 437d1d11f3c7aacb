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

# Who failed by time alone is tried again: who waits for a page does so each time, a host that takes a processor away
# does not. What found other bytes, or another status, is never tried again.
only_late() {
  local late='waited for a slow page|waited more than 1 ms longer|ms after the page had come|longer than the page: |do not go on: '
  grep -q 'BROKEN: ' "$work/output" && ! grep -q '^# a process' "$work/output" &&
    ! grep 'BROKEN: ' "$work/output" | grep -qvE "$late"
}

run_case() {
  local try
  for try in 1 2 3; do
    run "$@"
    [ $status -eq 1 ] && only_late || return
    [ $try -eq 3 ] || sed -n 's/.*BROKEN: /# late, tried again: /p' "$work/output"
  done
}

tell() { # stock or adverb, case
  sed -n "s/^# /# $1 $2: /p" "$work/output"
  sed -n -E "s/^(ok|not ok) - /\1 - $1: /p" "$work/output"
  if ! grep -qE '^(not )?ok - ' "$work/output"; then
    echo "not ok - $1: $2: exit status $status"
  fi
  head -n 20 "$work/errors" | sed 's/^/# /'
}

mapfile -t cases < <("$program" --list | grep "^$group")
[ ${#cases[@]} != 0 ] || echo "not ok - there are cases"
for case in ${cases[@]+"${cases[@]}"}; do
  run_case ADVERB_POLICY=off "$program" "$@" --pinned "$case"
  tell stock "$case"
  run_case ADVERB_POLICY="${ADVERB_POLICY-unpinned}" "LD_PRELOAD=${runtime:+$runtime:}$adverb" "$program" "$@" "$case"
  tell adverb "$case"
done
