#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# run.sh DIRECTORY-OF-LOOPBACK LIBADVERB SIGNALS [CASE]...: each case stock and under adverb; outputs and
# exit statuses must be the same, and under adverb the handlers must have been adverb's. Finds a
# sanitizer's runtime in the program and puts it first.
set -u
adverb=$2 program=$3
export LD_LIBRARY_PATH=$1
export ADVERB_LOOPBACK_FABRIC=adverb-signals.$$
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work" "/dev/shm/$ADVERB_LOOPBACK_FABRIC"' EXIT
ulimit -c 0

# A network of its own, so that nobody else's broker is met.
network=()
for try in "unshare -n" "unshare -rn"; do
  if $try ip link set lo up 2> /dev/null; then
    read -ra network <<< "$try"
    break
  fi
done
runtime=$(ldd "$program" | awk '$1 ~ /^lib(asan|tsan)\.so/ { print $3 }')
# A sanitizer takes these signals itself, and says how it found them.
export ASAN_OPTIONS=handle_segv=0:handle_sigbus=0:detect_leaks=0:use_sigaltstack=0
export TSAN_OPTIONS=handle_segv=0:handle_sigbus=0

run() { # name, case, environment...
  local name=$1 case=$2
  shift 2
  # shellcheck disable=SC2016 # expanded by the inner shell
  { ${network[@]+"${network[@]}"} sh -c 'ip link set lo up 2> /dev/null; exec "$@"' sh \
    env "$@" "$program" "$case" > "$work/$name" 2> "$work/$name.errors"; } 2> /dev/null
  echo "exit status $?" >> "$work/$name"
}

# What the handlers' owner must be; nobody can have those that are ignored.
foreign() {
  [ "$1" = fault_ignored ] && return 1
  grep '^handler of' "$work/adverb.errors" | grep -vq libadverb.so
}

mapfile -t cases < <("$program" --list)
[ $# = 0 ] || cases=("$@")
[ ${#cases[@]} != 0 ] || echo "not ok - there are cases"
for case in "${cases[@]}"; do
  run stock "$case" ADVERB_POLICY=off
  run adverb "$case" ADVERB_POLICY=default ADVERB_LOG=warn "SIGNALS_LOG=$work/adverb.errors" "LD_PRELOAD=${runtime:+$runtime:}$adverb"
  if ! diff "$work/stock" "$work/adverb" > "$work/difference"; then
    echo "not ok - $case: under adverb the program sees other signals"
    sed 's/^/# /' "$work/difference" "$work/adverb.errors"
  elif grep -q 'NOT' "$work/stock"; then
    echo "not ok - $case: the copies went wrong"
    sed 's/^/# /' "$work/stock"
  elif [ -z "$runtime" ] && { foreign "$case" || ! grep -q . "$work/stock"; }; then
    echo "not ok - $case: its copies were not native"
    sed 's/^/# /' "$work/adverb.errors"
  elif [ "$case" = handler_past_hooks ] && [ "$(grep -c 'replaced past sigaction' "$work/adverb.errors")" != 1 ]; then
    echo "not ok - $case: the log does not say once that copies are no longer native"
  else
    echo "ok - $case"
  fi
done
