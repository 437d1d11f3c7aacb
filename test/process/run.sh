#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# run.sh DIRECTORY-OF-LOOPBACK LIBADVERB PROGRAM ADVERB: each case of the program stock and under adverb, over the
# loopback device; what both print is to be the same (README.md).
set -u
loopback=$1 adverb=$2 program=$3 command=$4
scratch=$(mktemp -d)
trap 'rm -rf "$scratch" /dev/shm/adverb-process.$$.*' EXIT
export LD_LIBRARY_PATH=$loopback HOME=$scratch XDG_CONFIG_HOME=$scratch
unset LD_PRELOAD ADVERB_POLICY ADVERB_LOG
runs=0 ports=0

# under POLICY COMMAND...: what it prints and how it ends; its counters in $scratch/stats. What is unpinned has a link
# port of its own each time, so that nobody finds what an earlier run has started.
under() {
  local policy=$1
  shift
  rm -f "$scratch/stats"
  if [ "$policy" = unpinned ]; then
    policy=$scratch/policy.json
    printf '{ "version": 1, "link": { "port": %d }, "rules": [{ "register": "none" }] }\n' $((20000 + ++ports)) > "$policy"
  fi
  local -a with=("ADVERB_LOOPBACK_FABRIC=adverb-process.$$.$((++runs))")
  [ "$policy" = stock ] ||
    with+=("LD_PRELOAD=$adverb" "ADVERB_POLICY=$policy" "ADVERB_STATS_FILE=$scratch/stats" ADVERB_LOG=debug)
  timeout -k 5 100 env "${with[@]}" "$@" 2> "$scratch/errors"
  echo "[status $?]"
}
served() { grep -qE "\"hooks_calls\": *[1-9]" "$scratch/stats" 2> /dev/null; }

# compare NAME WANTED FOUND
compare() {
  if [ "$2" != "$3" ]; then
    echo "not ok - $1"
    echo "# without adverb: $2"
    echo "# with it: $3"
    sed 's/^/# /' "$scratch/errors" | tail -n 5
  elif ! served; then
    echo "not ok - $1: adverb was not in the process"
  else
    echo "ok - $1"
  fi
}

for case in pointers_early pointers_late pointers_stay mremap threads reaper descriptors descriptors_by_range \
  children numbers contexts closed_first close_cancelled stderr cancelled; do
  stock=$(under stock "$program" "$case")
  for policy in unpinned default; do
    # under a pipe the counters would be a subshell's
    under "$policy" "$program" "$case" > "$scratch/found"
    compare "$case: a program under $policy finds what it finds without adverb" "$stock" "$(cat "$scratch/found")"
  done
done

# A program's threads may have stacks of 16 KiB (user-level threads): adverb may take 12 KiB of one beyond stock's.
stock=$(under stock "$program" stack | head -n 1)
under unpinned "$program" stack > "$scratch/found"
found=$(head -n 1 "$scratch/found")
echo "# stack: $stock bytes without adverb, $found with it"
if [[ $stock =~ ^[0-9]+$ && $found =~ ^[0-9]+$ ]] && served && [ "$found" -le $((stock + 12288)) ]; then
  echo "ok - stack: adverb takes 12 KiB of a thread's stack at most"
else
  echo "not ok - stack: adverb takes 12 KiB of a thread's stack at most"
fi

# The first process of a namespace of processes waits for all: it ends, as nothing of adverb's is its child.
if unshare -pf --mount-proc true 2> /dev/null; then
  # shellcheck disable=SC2016 # for the inner shell
  first='"$0" reaper && while wait -n; do :; done; read -r left < /proc/$$/task/$$/children; echo "children: $left"'
  stock=$(under stock unshare -pf --mount-proc bash -c "$first" "$program")
  under unpinned unshare -pf --mount-proc bash -c "$first" "$program" > "$scratch/found"
  compare "container: its first process has nobody left to wait for" "$stock" "$(cat "$scratch/found")"
fi

# A program built with AddressSanitizer, whose runtime must come first.
if [ -x "$program-asan" ]; then
  stock=$(under stock "$program-asan" reaper)
  ADVERB_LOOPBACK_FABRIC=adverb-process.$$.asan ADVERB_STATS_FILE=$scratch/stats ADVERB_POLICY=unpinned \
    timeout -k 5 100 "$command" run --quiet -- "$program-asan" reaper > "$scratch/found" 2> "$scratch/errors"
  echo "[status $?]" >> "$scratch/found"
  compare "asan: adverb run keeps a sanitizer's runtime first" "$stock" "$(cat "$scratch/found")"
fi
