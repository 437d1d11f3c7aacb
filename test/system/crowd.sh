#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=2048 swap=3072
# timeout: 1500
# Sixty-four programs whose memory changes under their leases, all in one control group that has no room for what
# they would pin under stock. Each verifies every byte; together they pin no more than their shares, and nobody is
# killed for want of memory.
# shellcheck disable=SC2317 # what await and trap call
# shellcheck source=test/system/lib.sh
. "$(dirname "$0")/lib.sh"

program=$ADVERB_BUILD/test/remapped/remapped
crowd=${ADVERB_CROWD_PROGRAMS:-64}
seconds=${ADVERB_CROWD_SECONDS:-180}
# Each has 17 MiB registered.
limit=$((crowd * ${ADVERB_CROWD_MIB:-12} << 20))
groups=/sys/fs/cgroup
members=()

# lib.sh's, and what it has in groups of its own.
leave() {
  [ "$BASHPID" = $$ ] || return 0
  local group
  for group in "$groups"/crowd.*; do
    [ ! -d "$group" ] || echo 1 > "$group/cgroup.kill"
  done
  rm -rf "$scratch"
}
trap leave EXIT

# start_crowd NAME [WORD]...: so many programs, with the words before each, in the control group crowd.NAME. They wait
# at a gate when they have registered all they have.
start_crowd() {
  local name=$1 group=$groups/crowd.$1 i
  shift
  mkdir "$group" "$scratch/$name"
  echo "$limit" > "$group/memory.max"
  mkfifo "$scratch/$name/gate"
  members=()
  for ((i = 0; i < crowd; i++)); do
    (
      echo "$BASHPID" > "$group/cgroup.procs"
      ADVERB_STATS_FILE=$scratch/$name/$i.json exec "$@" "$program" "$seconds" "$i" "$scratch/$name/gate"
    ) > "$scratch/$name/$i.out" 2>&1 &
    members+=($!)
  done
}

# all_say NAME WORDS: all of the crowd have said that.
all_say() { [ "$(grep -l -- "$2" "$scratch/$1"/*.out 2> /dev/null | wc -l)" = "$crowd" ]; }

# event NAME EVENT: how often it has happened to the crowd's memory.
event() { sed -n "s/^$2 //p" "$groups/crowd.$1/memory.events"; }

mib() { echo $(($1 >> 20)); }

settled() { all_say "$1" '^# registered' || [ "$(event "$1" oom_kill)" != 0 ]; }

# Stock pins what each has registered.
stock_does_not_fit() {
  local began=$SECONDS name
  name="stock: $crowd programs do not fit $(mib "$limit") MiB"
  start_crowd stock
  await 400 settled stock
  echo "# stock: after $((SECONDS - began)) s $(grep -l '^# registered' "$scratch"/stock/*.out | wc -l) programs stood, $(event stock oom_kill) had been killed"
  [ "$(event stock oom_kill)" != 0 ] && ok "$name" || not_ok "$name" "nobody was killed"
  echo 1 > "$groups/crowd.stock/cgroup.kill"
  wait "${members[@]}" 2> /dev/null
}

# What the crowd has now: how many there are, and the bytes they have pinned, leased, and pinned as requests under way
# force it. The most of each is kept.
look() {
  local count pinned leased forced
  read -r count pinned leased forced < <(adverb stat --json | jq -r '[.processes[] | select(.program | test("remapped")) | .gauges] |
    "\(length) \(map(.pinned_bytes) | add // 0) \(map(.leased_bytes) | add // 0) \(map(.recv_forced_bytes + .send_forced_bytes) | add // 0)"')
  [ "${count:-0}" -le "$most_seen" ] || most_seen=$count
  [ "${count:-0}" -ge $((crowd * 9 / 10)) ] || return 0
  looks=$((looks + 1))
  [ $((pinned - forced)) -le "$most_pinned" ] || most_pinned=$((pinned - forced))
  [ "$leased" -le "$most_leased" ] || most_leased=$leased
  [ "$forced" -le "$most_forced" ] || most_forced=$forced
}

# sum FIELD: of what all of the crowd had counted at their ends.
sum() { jq -s "map(.counters.$1 // .gauges.$1) | add" "$scratch"/adverb/*.json 2> /dev/null || echo 0; }

running() {
  local member
  for member in "${members[@]}"; do
    ended "$member" || return 0
  done
  return 1
}

crowd_is_served() {
  local began=$SECONDS member looks=0 most_pinned=0 most_leased=0 most_forced=0 most_seen=0
  # As the profile "unpinned", but that nobody is given up on who stands still for a while: the host's fault, not adverb's.
  cat > "$scratch/crowd.json" << JSON
{ "version": 1, "recall_wait": "10000ms", "pinned_budget": "${ADVERB_CROWD_BUDGET:-auto}",
  "rules": [{ "register": "elastic" }, { "peers": "auto" }] }
JSON
  start_crowd adverb adverb run --policy "$scratch/crowd.json" --
  if ! await 400 all_say adverb '^# registered'; then
    not_ok "$crowd programs register what they have" "$(cat "$scratch"/adverb/*.out | grep -v '^#' | sort | uniq -c | head -n 5)"
    return
  fi
  echo "# all had registered after $((SECONDS - began)) s"
  began=$SECONDS
  local gate
  exec {gate}> "$scratch/adverb/gate" # which lets all of them go
  while running && [ $((SECONDS - began)) -lt $((seconds + 300)) ]; do
    look
    nap 2
  done
  exec {gate}>&-
  ! running && ok "$crowd programs come to their ends" ||
    not_ok "$crowd programs come to their ends" "some run $((SECONDS - began)) s after they have begun"
  running || wait "${members[@]}"
  echo "# they ran for $((SECONDS - began)) s, and were looked at $looks times"
  judge_crowd
}

judge_crowd() {
  right
  bounded
  within_shares
  recalled
}

right() {
  local good rounds name="$crowd programs find what is sent, received, read and written right"
  good=$(grep -l '^ok - what' "$scratch"/adverb/*.out | wc -l)
  rounds=$(cat "$scratch"/adverb/*.out | awk '/^# [0-9]+ rounds/ { n += $2 } END { print n + 0 }')
  echo "# $rounds rounds, $(sum posts_leased) requests leased, $(sum posts_unload) by their owner's CPU"
  [ "$good" = "$crowd" ] && ok "$name" ||
    not_ok "$name" "$((crowd - good)) do not: $(grep -hv '^#\|^ok' "$scratch"/adverb/*.out | head -n 3 | tr '\n' ';')"
  grep -L '^ok - what' "$scratch"/adverb/*.out | head -n 3 | xargs -r sed 's/^/# /'
  dmesg | grep 'segfault\|traps:' | sed 's/^/# /' || :
}

# By the kernel's word, whose limit the crowd has met.
bounded() {
  local group=$groups/crowd.adverb name="nobody is killed for want of memory"
  echo "# the group peaked at $(mib "$(cat "$group/memory.peak")") MiB and $(mib "$(cat "$group/memory.swap.peak")") MiB in swap; $(tr '\n' ' ' < "$group/memory.events")"
  [ "$(event adverb oom)" = 0 ] && [ "$(event adverb oom_kill)" = 0 ] && ok "$name" ||
    not_ok "$name" "oom $(event adverb oom), oom_kill $(event adverb oom_kill)"
  [ "$(event adverb max)" != 0 ] && ok "all of it is in use" || not_ok "all of it is in use" "its limit was never met"
}

# A sixteenth of the group's memory is shared by all. Besides that there are staging, which was still there at the ends,
# and what requests under way forced.
within_shares() {
  local share=$((limit / 16)) staging name
  staging=$(sum pinned_bytes)
  echo "# at most $(mib "$most_pinned") MiB were pinned and $(mib "$most_forced") forced besides, $(mib "$most_leased") of it leased; the shares are $(mib "$share") together, staging is $(mib "$staging")"
  [ "$looks" -ge 2 ] && ok "all of the crowd are seen at once" || not_ok "all of the crowd are seen at once" "$looks times; $most_seen were at most"
  name="windows and leases are within the shares"
  [ $((most_pinned - staging)) -le "$share" ] && ok "$name" || not_ok "$name" "see above"
  name="leases are within half of the shares"
  [ "$most_leased" -gt 0 ] && [ "$most_leased" -le $((share / 2)) ] && ok "$name" || not_ok "$name" "see above"
}

recalled() {
  local recalls overdue leased name="leases are called back in time, and none is left"
  recalls=$(sum recalls) overdue=$(sum recalls_overdue) leased=$(sum leased_bytes)
  echo "# $recalls leases called back, $(sum uses_at_recall) requests under way then, $overdue overdue"
  [ "$recalls" -ge "$crowd" ] && [ $((overdue * 100)) -le "$recalls" ] && [ "$leased" = 0 ] && ok "$name" ||
    not_ok "$name" "$recalls, $overdue overdue, $leased bytes left"
  name="nothing stays pinned when the programs have ended"
  [ "$(registered_with_device)" = 0 ] && ok "$name" || not_ok "$name" "$(rdma resource show mr | head -n 3)"
}

registered_with_device() { rdma resource show mr | grep -c mrlen; }

echo +memory > "$groups/cgroup.subtree_control"
stock_does_not_fit
crowd_is_served
exit 0
