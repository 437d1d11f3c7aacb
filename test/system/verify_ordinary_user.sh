#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072
# timeout: 300
# An ordinary user with 8 MiB of lockable memory (the default limit) and regions in 32 PDs.
. "$(dirname "$0")/verify_cases.sh"
chmod 0666 /dev/infiniband/uverbs* # as the rdma group's udev rule allows its members
logs=$(mktemp -d)
chmod 0777 "$logs"

as_user() { # LOG WRAP...
  local log=$1
  shift
  # shellcheck disable=SC2016 # expanded by the inner shell
  timeout 120 setpriv --reuid nobody --regid nogroup --clear-groups --bounding-set=-all \
    bash -c 'ulimit -l 8192; cd /; exec "$@"' as_user "$@" "$verify" --role pair --device rxe0 --log "$log" \
    --case peer.many_pds > "$scratch/out" 2>&1
}

if as_user "$logs/stock.log"; then
  ok "32 PDs as an ordinary user, stock"
else
  # Stock counts each region's pages against the limit: that it fails is no fault of ours.
  skip "32 PDs as an ordinary user, stock" "$(grep -h 'cannot run' "$logs/stock.log" | head -n 1)"
fi
# shellcheck disable=SC2086 # the wrap is words
# shellcheck disable=SC2046 # the wrap is words
if ! have_adverb; then
  skip "32 PDs as an ordinary user, under adverb" "adverb is not built"
elif as_user "$logs/adverb.log" $(under unpinned); then
  ok "32 PDs as an ordinary user, under adverb"
else
  not_ok "32 PDs as an ordinary user, under adverb" "$(tail -n 1 "$scratch/out")"
  sed 's/^/# /' "$scratch/out" | head -n 30
fi
rm -rf "$logs"
exit 0
