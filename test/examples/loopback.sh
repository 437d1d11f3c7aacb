#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# loopback.sh DIRECTORY-OF-LOOPBACK LIBADVERB KEY-VALUE HEAP [--gate]: the larger examples over the loopback
# device, stock and under every policy that people would give them; one TAP line for each. The programs
# compare every byte themselves. --gate: unpinned, by their own policies, and what they refuse.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
adverb=$2 key_value=$3 heap=$4 only=${5-}
export LD_LIBRARY_PATH=$1

# shellcheck source=test/examples/lib.sh
. "$here/lib.sh"
runtime=$(ldd "$key_value" | awk '$1 ~ /^lib(asan|tsan)\.so/ { print $3 }')

# under POLICY PROGRAM...: the program, stock or with the preload.
under() {
  local policy=$1
  shift
  if [ "$policy" = stock ]; then
    exec timeout -k 2 120 "$@"
  fi
  exec timeout -k 2 120 env "ADVERB_POLICY=$policy" "LD_PRELOAD=${runtime:+$runtime:}$adverb" "$@"
}

not_ok() { # NAME REASON: and what all of them have said
  echo "not ok - $1: $2"
  tail -n 20 "$work/server" "$work"/client.[0-9] 2> /dev/null | cut -c 1-300 | sed 's/^/# /'
}

# runs NAME CLIENTS SERVER-POLICY CLIENT-POLICY PROGRAM SERVER-OPTIONS CLIENT-OPTIONS: true, and $work/server
# and $work/client.N, when all end well.
runs() {
  local name=$1 clients=$2 program=$5 server status=0 pid i
  local -a pids=() serving asking
  read -ra serving <<< "$6"
  read -ra asking <<< "$7"
  port=$((port + 1))
  rm -f "$work"/client.* "$work"/*.json
  export ADVERB_STATS_FILE=$work/server.json
  under "$3" "$program" -d lo0 -p "$port" "${serving[@]}" > "$work/server" 2>&1 &
  server=$!
  if await_listener "$server"; then
    for ((i = 0; i < clients; i++)); do
      export ADVERB_STATS_FILE=$work/client.$i.json
      under "$4" "$program" -d lo0 -p "$port" "${asking[@]}" -S "$i" 127.0.0.1 > "$work/client.$i" 2>&1 &
      pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
  else
    status="none: there is no server"
  fi
  [ "$status" = 0 ] || kill "$server" 2> /dev/null
  local served=0
  wait "$server" || served=$?
  if [ "$status" != 0 ] || [ "$served" != 0 ]; then
    not_ok "$name" "client's exit status $status, server's $served"
    return 1
  fi
  return 0
}

# counter FILE NAME: of adverb's counters of a program that has ended; nothing where it has left none.
counter() { jq -r "(.counters + .gauges).$2" "$work/$1.json"; }

# That $work/FILE.json counts at least one NAME.
counts() {
  [ "$(counter "$1" "$2")" -gt 0 ] 2> /dev/null || why+="the $1 counts no $2; "
}

# That $work/FILE.json is there and counts no NAME.
counts_none() {
  [ "$(counter "$1" "$2")" = 0 ] || why+="the $1 counts $2; "
}

# Two clients, each of which writes its own keys and reads all of them while the other one writes.
key_value_under() { # NAME POLICY
  local name="key-value $1" why=""
  runs "$name" 2 "$2" "$2" "$key_value" "-m 24 -r 8 -s 4096 -c 2 -f" "-e -l -n 6000 -g 70 -a -t 8" || return
  case $1 in
  stock) ;;
  default) counts client.0 regions_unpinned && counts server regions_pinned ;;
  none) counts server regions_unpinned && counts client.0 posts_unload && counts_none client.0 posts_leased ;;
  *) counts server regions_unpinned && counts client.0 posts_unload && counts client.0 posts_leased ;;
  esac
  if [ -z "$why" ]; then
    echo "ok - $name: every value of a table that two clients write is right"
  else
    not_ok "$name" "$why"
  fi
}

heap_under() { # NAME SERVER-POLICY CLIENT-POLICY
  local name="heap $1" why=""
  runs "$name" 1 "$2" "$3" "$heap" "-m 256 -e" "-m 256 -e -n 1500 -s 262144 -o 300" || return
  [ "$2" = stock ] || counts server regions_unpinned
  [ "$3" = stock ] || counts client.0 regions_unpinned
  if [ -z "$why" ]; then
    echo "ok - $name: every byte sent from anywhere in the heap comes back"
  else
    not_ok "$name" "$why"
  fi
}

# What is asked for wrongly, or is not there, is answered by a line that names it.
says() { # TEXT PROGRAM OPTION...
  local text=$1 said status=0
  shift
  said=$(timeout -k 2 60 "$@" 2>&1) || status=$?
  if [ "$status" = 1 ] && [[ $said == *"$text"* ]]; then
    echo "ok - ${*:2} is answered by \"$text\""
  else
    echo "not ok - ${*:2} is answered by \"$text\": status $status, $(head -n 1 <<< "$said")"
  fi
}

# What adverb itself uses may fail, too. The program hears of a refusal, and the log has to say more.
failure_is_named() {
  local name="a failure of adverb's own queue pair is named in the log"
  ADVERB_LOOPBACK_FAULTS=error=0.01:REM_INV_REQ runs "$name" 1 unpinned unpinned "$key_value" \
    "-m 16 -f -k" "-e -n 100000" > "$work/said"
  if grep -q "GET of key\|PUT of key" "$work/client.0" && cat "$work/server" "$work/client.0" |
    grep -q "companion queue pair failed with work completion status 9"; then
    echo "ok - $name"
  else
    sed "s/^not ok - [^:]*:/not ok - $name:/" "$work/said"
  fi
}

# Over a link that loses, by packets: each but the last of a message is full.
key_value_far() {
  local name="key-value over a far link" why="" data
  ADVERB_LOOPBACK_LINK=seed=7,loss=1e-2,delay=2ms runs "$name" 2 far far "$key_value" "-m 24 -r 8 -s 4096 -c 2 -f" \
    "-e -l -n 2000 -g 50 -t 8" || return
  counts client.0 posts_steered
  counts client.0 endpoint_packets_again
  data=$(jq '.counters | [.endpoint_packets_sent - .endpoint_packets_again - .endpoint_packets_parity,
    .posts_unload_bytes / 4000 + .link_messages] | @text' "$work/client.0.json")
  jq -e '.counters | .endpoint_packets_sent - .endpoint_packets_again - .endpoint_packets_parity <=
    .posts_unload_bytes / 4000 + .link_messages' "$work/client.0.json" > /dev/null ||
    why+="packets of data, and as many as there may be: $data; "
  if [ -z "$why" ]; then
    echo "ok - $name: every value of a table that two clients write is right, and packets are full"
  else
    not_ok "$name" "$why"
  fi
}

none=$here/../verify/policies/none.json
examples=$here/../../examples
key_value_under unpinned unpinned
key_value_under "by its own policy" "$examples/key-value/policy.json"
key_value_far
heap_under unpinned unpinned unpinned
heap_under "by its own policy" "$examples/heap/policy.json" "$examples/heap/policy.json"
if [ "$only" != --gate ]; then
  key_value_under stock stock
  key_value_under default default
  key_value_under none "$none"
  heap_under stock stock stock
  heap_under default default default
  heap_under none "$none" "$none"
  heap_under "with a stock client" "$examples/heap/policy.json" stock
  heap_under "with a stock server" stock "$examples/heap/policy.json"
  failure_is_named
fi
says "no RDMA device 'none'" "$key_value" -d none
says "no GID 99" "$key_value" -d lo0 -x 99
says "no server at 127.0.0.1" "$key_value" -p 1 127.0.0.1
says "-g takes a number from 0 to 100, not '101'" "$key_value" -g 101
says "-s takes a multiple of 8" "$key_value" -s 100
says "one server, and not 'b' besides" "$heap" a b
says "a heap has 15 MiB at least" "$heap" -d lo0 -m 1
