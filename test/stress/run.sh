#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# run.sh DIRECTORY-OF-LOOPBACK LIBADVERB PROGRAM [OPTION]...: the program over the loopback device,
# under libadverb unless that is `none`, which has to show by its counters that it was there. Finds a
# sanitizer's runtime in the program and puts it first.
set -u
loopback=$1 adverb=$2 program=$3
shift 3
export LD_LIBRARY_PATH=$loopback
export ADVERB_LOOPBACK_FABRIC=adverb-stress.$$
if [ "$adverb" = none ]; then
  trap 'rm -f "/dev/shm/$ADVERB_LOOPBACK_FABRIC"' EXIT
  "$program" "$@"
  exit
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch" "/dev/shm/$ADVERB_LOOPBACK_FABRIC"' EXIT
runtime=$(ldd "$program" | awk '$1 ~ /^lib(asan|tsan)\.so/ { print $3 }')
export ADVERB_POLICY=${ADVERB_POLICY-unpinned}
export ADVERB_STATS_FILE=${ADVERB_STATS_FILE-$scratch/%p}
preload=${runtime:+$runtime:}$adverb
env LD_PRELOAD="$preload" "$program" "$@"
status=$?

# Of all processes; nothing where nobody wrote any.
count() {
  # shellcheck disable=SC2086 # a pattern
  grep -ho "\"$1\": *[0-9]*" ${ADVERB_STATS_FILE//%p/*} 2> /dev/null | awk -F: '{ n += $2 } END { if (NR > 0) print n }'
}
# The profile that changes nothing counts nothing: the loader says what it takes in.
loaded() { env LD_PRELOAD="$preload" LD_TRACE_LOADED_OBJECTS=1 "$program" 2> /dev/null | grep -qF "${adverb%%:*} "; }
calls=$(count hooks_calls) unpinned=$(count regions_unpinned) pinned=$(count regions_pinned)
promise="adverb was in the process"
case $ADVERB_POLICY in
  off) loaded ;;
  # These leave some programs' regions pinned, all of them.
  default | *small-pinned*) [ "${calls:-0}" -gt 0 ] && [ $((${unpinned:-0} + ${pinned:-0})) -gt 0 ] ;;
  *) [ "${calls:-0}" -gt 0 ] && [ "${unpinned:-0}" -gt 0 ] ;;
esac
present=$?
if [ "$present" = 0 ]; then
  echo "ok - $promise"
else
  echo "not ok - $promise"
  echo "# ${calls:-no} calls of verbs counted, ${unpinned:-no} regions unpinned, ${pinned:-no} pinned"
  [ "$status" != 0 ] || status=1
fi
exit "$status"
