#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072
# wrap: adverb
# timeout: 600
# Programs of an ordinary user under the default limit of lockable memory, with buffers that stock
# could not register.
. "$(dirname "$0")/perftest_cases.sh"
chmod 0777 "$scratch"
drop="setpriv --reuid nobody --regid nogroup --clear-groups --bounding-set=-all prlimit --memlock=8388608:8388608"

write="$drop ib_write_bw -F -d rxe0 -x 1 -p PORT -s 8388608 -n 5"
ADVERB_RUN="" both_ends "stock" "$write" "$write SERVER"
if grep -q -i "allocate MR\|create MR" "$scratch"/{server,client}.out; then
  ok "stock cannot register 16 MiB as an ordinary user"
else
  not_ok "stock cannot register 16 MiB as an ordinary user" "it did not complain"
  outputs
fi
ADVERB_RUN="$drop $ADVERB_RUN"
for program in ib_{write,read,send}_bw; do
  perftest "$program of an ordinary user, 16 MiB buffer" "$program" -n 5 -s 8388608
done
perftest "ib_atomic_bw of an ordinary user" ib_atomic_bw -n 20
