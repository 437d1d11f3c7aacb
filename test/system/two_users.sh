#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072
# wrap: adverb
# timeout: 300
# Programs of two users of a host link by the broker of all, and a third user who says that their queue
# pairs are his gets none of what is meant for them: the kernel knows who made them.
. "$(dirname "$0")/perftest_cases.sh"
chmod 0777 "$scratch"
limits="--clear-groups --bounding-set=-all prlimit --memlock=8388608:8388608"
run=$ADVERB_RUN
export server_run="setpriv --reuid nobody --regid nogroup $limits $run"
export client_run="setpriv --reuid daemon --regid daemon $limits $run"

adverb broker > "$scratch/broker.out" 2>&1 &
broker=$!
await 20 grep -q serving "$scratch/broker.out" || echo "# $(cat "$scratch/broker.out")"
setpriv --reuid games --regid games --clear-groups /usr/bin/python3 "$(dirname "$0")/claim_all.py" 7771 > "$scratch/rogue.out" 2>&1 &
rogue=$!
await 20 grep -q claimed "$scratch/rogue.out" || echo "# $(cat "$scratch/rogue.out")"

began=$SECONDS
perftest "ib_write_bw of two users, by the broker of all" ib_write_bw -n 5 -s 65536
perftest "ib_read_lat of two users, by the broker of all" ib_read_lat -n 20
took=$((SECONDS - began))
kill "$rogue"
wait "$rogue"
if grep -q "^handed" "$scratch/rogue.out"; then
  not_ok "who claims others' queue pairs is handed no connection meant for them" "$(tail -n 1 "$scratch/rogue.out")"
else
  ok "who claims others' queue pairs is handed no connection meant for them"
fi
if grep -q "which another process has made; its peers are not handed to it" "$scratch/broker.out"; then
  ok "the broker says who claimed another's queue pair"
else
  not_ok "the broker says who claimed another's queue pair" "$(cat "$scratch/broker.out") after $took s"
fi
kill "$broker"
wait "$broker" && ok "the broker ends when it is told to" || not_ok "the broker ends when it is told to" "status $?"
