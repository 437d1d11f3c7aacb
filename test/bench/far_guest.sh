#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# What far.py has two virtual hosts measure: copies by examples/far-copy over a link of each kind.
#
#   far_guest.sh PAIRS KIND...
#
# KIND: MTU,DELAY,LOSS,MIB: of the Ethernet link; each way, or 0; each way in percent; of the copy. The sender prints a
# line "far KIND PAIR WAY ..." for each way: auto and rc by turns, then raw.
set -u
cd "$(dirname "$0")/../.." || exit 1
pairs=$1
shift
copy=$ADVERB_BUILD/examples/far-copy/far-copy
export LD_LIBRARY_PATH=$ADVERB_BUILD/preload
modprobe sch_netem || exit 1

link() { # MTU DELAY LOSS
  ip link set eth0 mtu "$1" || exit 1
  tc qdisc del dev eth0 root 2> /dev/null
  [ "$2" = 0 ] || tc qdisc add dev eth0 root netem limit 100000 delay "$2" loss "$3%" || exit 1
}

ways() { [ $(($1 % 2)) = 0 ] && echo auto,rc,raw || echo rc,auto,raw; }

for kind in "$@"; do
  IFS=, read -r mtu delay loss mib <<< "$kind"
  link "$mtu" "$delay" "$loss"
  for ((pair = 0; pair < pairs; pair++)); do
    if [ "$VM_HOST" = 0 ]; then
      (until ss -Hltn "sport = :18515" | grep -q .; do :; done; vm-barrier "listens.$kind.$pair") &
      timeout 300 "$copy" rxe0:1 > /tmp/far.out 2>&1 || { echo "receiver: $(tail -n 3 /tmp/far.out)" >&2; exit 1; }
      wait
    else
      vm-barrier "listens.$kind.$pair"
      timeout 300 "$copy" rxe0:1 --bytes "${mib}M" --repair "$(ways "$pair")" "$VM_IP_0" > /tmp/far.out 2>&1 ||
        { echo "sender: $(tail -n 3 /tmp/far.out)" >&2; exit 1; }
      sed -n "s/^\(auto\|rc\|raw\) /far $kind $pair \1 /p" /tmp/far.out
    fi
  done
done
