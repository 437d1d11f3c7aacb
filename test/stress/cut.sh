#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# cut.sh DIRECTORY-OF-LOOPBACK LIBADVERB PROGRAM [OPTION]...: run.sh in a network of its own, in which every
# connection between the two processes is given up some times a second (cut.py). Programs notice nothing of it.
set -u
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${CUT_INSIDE-}" ]; then
  for try in "unshare -n" "unshare -rn"; do
    if $try ip link set lo up 2> /dev/null; then
      read -ra network <<< "$try"
      CUT_INSIDE=1 exec "${network[@]}" "$0" "$@"
    fi
  done
  echo "ok - lost connections # SKIP no network of its own can be had"
  exit 0
fi
ip link set lo up
# The kernel of this machine has to be able to (CONFIG_INET_DIAG_DESTROY).
if ! /usr/bin/python3 "$here/cut.py" --can; then
  echo "ok - lost connections # SKIP the kernel does not end connections on demand"
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export ADVERB_STATS_FILE=$work/stats.%p
"$here/run.sh" "$@" &
program=$!
/usr/bin/python3 "$here/cut.py" 7771 "$program"
wait "$program"
status=$?
resumed=$(grep -ho '"links_resumed": *[0-9]*' "$work"/stats.* | awk -F: '{ n += $2 } END { print n + 0 }')
if [ "$resumed" -ge 20 ]; then
  echo "ok - links have gone on over other connections"
else
  echo "not ok - links have gone on over other connections: $resumed times"
fi
exit "$status"
