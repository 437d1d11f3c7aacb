#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# run.sh DIRECTORY-OF-LOOPBACK LIBADVERB PROGRAM [OPTION]...: the program over the loopback device,
# under libadverb unless that is `none`. Finds a sanitizer's runtime in the program and puts it first.
set -eu
loopback=$1 adverb=$2 program=$3
shift 3
export LD_LIBRARY_PATH=$loopback
export ADVERB_LOOPBACK_FABRIC=adverb-stress.$$
trap 'rm -f "/dev/shm/$ADVERB_LOOPBACK_FABRIC"' EXIT
if [ "$adverb" != none ]; then
  runtime=$(ldd "$program" | awk '$1 ~ /^lib(asan|tsan)\.so/ { print $3 }')
  export ADVERB_POLICY=${ADVERB_POLICY-unpinned}
  env LD_PRELOAD="${runtime:+$runtime:}$adverb" "$program" "$@"
else
  "$program" "$@"
fi
