#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# run.sh DIRECTORY-OF-LOOPBACK LIBADVERB PROGRAM [SEEDS]: pairs of endpoints over the loopback device, with a good link
# and with bad ones; the library preloaded, found by the dynamic loader, and absent.
set -u
loopback=$1 adverb=$2 program=$3 seeds=${4:-6}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch" /dev/shm/adverb-endpoint.$$.*' EXIT
export HOME=$scratch XDG_CONFIG_HOME=$scratch
unset LD_PRELOAD ADVERB_POLICY ADVERB_LOG ADVERB_LOOPBACK_LINK
export ASAN_OPTIONS=detect_leaks=0 # these programs give nothing back at their end
tests=0
# A sanitizer's runtime comes first, also where the program looks the library up.
runtime=$(ldd "$adverb" | awk '$1 ~ /^lib(asan|tsan)\.so/ { print $3; exit }')

# run NAME LINK VARIABLE=VALUE... -- ARGUMENTS: the program's own line, or that it did not end.
run() {
  local name=$1 link=$2
  shift 2
  local -a with=()
  while [ "$1" != -- ]; do with+=("$1"); shift; done
  shift
  tests=$((tests + 1))
  with+=("ADVERB_LOOPBACK_FABRIC=adverb-endpoint.$$.$tests")
  [ -z "$link" ] || with+=("ADVERB_LOOPBACK_LINK=$link")
  timeout -k 5 120 env "LD_LIBRARY_PATH=$loopback${library:-}" "${with[@]}" "$program" "$@" > "$scratch/out" 2>&1
  local status=$?
  if [ "$status" = 0 ] && grep -q '^ok - ' "$scratch/out"; then
    echo "ok - $name"
    grep '^#' "$scratch/out"
  else
    echo "not ok - $name: status $status"
    sed 's/^/# /' "$scratch/out" | tail -n 20
  fi
}

library=''
for transport in uc ud; do
  run "$transport over a good link" "" "LD_PRELOAD=${runtime:+$runtime:}$adverb" -- "$transport" 1
  for ((seed = 1; seed <= seeds; ++seed)); do
    run "$transport over a link that loses, repeats, reorders and delays, seed $seed" \
      "seed=$seed,loss=2e-2,burst=3,duplicate=1e-2,reorder=2e-2:8,late=1e-2:5ms,delay=1ms" "LD_PRELOAD=${runtime:+$runtime:}$adverb" -- \
      "$transport" "$seed"
  done
done
library=:$(dirname "$adverb")
run "the library is found without a preload" "" "LD_PRELOAD=$runtime" -- uc 1
library=''
tests=$((tests + 1))
if LD_PRELOAD=$runtime LD_LIBRARY_PATH=$loopback ADVERB_LOOPBACK_FABRIC=adverb-endpoint.$$.$tests "$program" uc 1 2>&1 |
  grep -q 'an endpoint is made: Function not implemented'; then
  echo "ok - without the library a call says that there is none"
else
  echo "not ok - without the library a call says that there is none"
fi
echo "1..$tests"
