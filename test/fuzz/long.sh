#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# long.sh REPOSITORY BUILD SECONDS: each target by libFuzzer for so long. What it has found of use is kept in the
# cache for the next time. Needs clang. Prints TAP.
set -u
repo=$1 build=$2 seconds=$3
cache=${ADVERB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/adverb}/fuzz
mkdir -p "$cache"
here=$repo/test/fuzz
sources=("$here/targets.cpp" "$here/libfuzzer.cpp" "$repo/preload/link/wire.cpp" "$repo/preload/observe/peers.cpp"
  "$repo/preload/observe/snapshot.cpp" "$repo/preload/observe/trace.cpp" "$repo/preload/observe/trace_log.cpp"
  "$repo/preload/reliability/wire.cpp")
if ! said=$(clang++ -std=c++20 -g -O1 -D_GNU_SOURCE -DSPDLOG_HEADER_ONLY '-DADVERB_VERSION="fuzz"' -I"$repo/preload" \
    -I"$repo/preload/include" -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all "${sources[@]}" \
    -o "$build/fuzz_long" 2>&1); then
  echo "not ok - libFuzzer: does not build: $(tail -n 3 <<< "$said" | tr '\n' ' ')"
  exit 1
fi
failed=0
for target in frames messages packets page; do
  mkdir -p "$cache/$target"
  if said=$(cd "$build" && ADVERB_FUZZ_TARGET=$target ./fuzz_long -max_len=4096 -max_total_time="$seconds" -rss_limit_mb=2048 \
      -artifact_prefix="$build/fuzz-$target-" "$cache/$target" 2>&1); then
    echo "ok - $target: $(grep -o 'Done [0-9]* runs' <<< "$said")"
  else
    echo "not ok - $target: $(grep -m 1 -E 'fuzz: broken|ERROR|runtime error' <<< "$said")"
    tail -n 30 <<< "$said" | sed 's/^/# /'
    failed=1
  fi
done
exit $failed
