#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# trace.sh DIRECTORY-OF-LOOPBACK LIBADVERB KEY-VALUE ADVERB: adverb trace of a server that runs and of a
# client that has ended, unpinned and with the defaults; one TAP line for each promise.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
adverb_lib=$2 key_value=$3 adverb=$4
export LD_LIBRARY_PATH=$1

# shellcheck source=test/examples/lib.sh
. "$here/lib.sh"
runtime=$(ldd "$key_value" | awk '$1 ~ /^lib(asan|tsan)\.so/ { print $3 }')
export XDG_RUNTIME_DIR=$work/runtime
mkdir -m 700 "$XDG_RUNTIME_DIR"

under() { # POLICY STATISTICS PROGRAM...
  local policy=$1 statistics=$2
  shift 2
  exec timeout -k 2 120 env "ADVERB_POLICY=$policy" "ADVERB_STATS_FILE=$statistics" \
    "LD_PRELOAD=${runtime:+$runtime:}$adverb_lib" "$@"
}

say() { # NAME STATUS WHY
  if [ "$2" = 0 ]; then echo "ok - $1"; else echo "not ok - $1: $(head -c 400 <<< "$3" | tr '\n' ' ')"; fi
}

# has PATTERN: a line of $work/text is like that.
has() { grep -Eq "$1" "$work/text"; }

serve() { # POLICY
  port=$((port + 1))
  under "$1" "$work/server.json" "$key_value" -d lo0 -p "$port" -m 4 -r 8 -s 4096 -f > "$work/server" 2>&1 &
  server=$!
  await_listener "$server"
}

ask() { # POLICY: a client, to its end
  (under "$1" "$work/client.json" "$key_value" -d lo0 -p "$port" -e -l -n 6000 -g 70 -a -t 8 127.0.0.1) \
    > "$work/client" 2>&1
}

serve unpinned
child=$(pgrep -P "$server")
status=0
"$adverb" trace "${child:-0}" > "$work/text" 2>&1 || status=$?
say "a process that has decided nothing yet has a trace without a line" \
  "$([ "$status" = 0 ] && [ "$(wc -l < "$work/text")" = 2 ] && echo 0 || echo 1)" "$status $(< "$work/text")"
"$adverb" trace --follow "$child" > "$work/followed" 2>&1 &
follower=$!
ask unpinned || say "the client ends well" 1 "$(< "$work/client")"
wait "$server"
status=0
wait "$follower" || status=$?
say "a trace that follows a program ends when it ends" "$status" "$(< "$work/followed")"

status=0
"$adverb" trace "$work/client.json" > "$work/text" 2>&1 || status=$?
has 'peer: it runs adverb' && has "(WRITE|READ) of .*: unload \(.*\): the owner has not pinned the region" &&
  has ' lease of [0-9]+ bytes at 0x[0-9a-f]+, key 0x[0-9a-f]+, can be used' && has ': leased \(' ||
  status=1
say "the trace of a client tells of its peer, ways, leases, and why" "$status" "$(< "$work/text")"

status=0
"$adverb" trace --json "$work/client.json" > "$work/json" 2>&1 &&
  jq -e '[.traceEvents[] | select(.cat == "way")] as $ways | ($ways | map(select(.ph == "b")) | length) > 1 and
    (($ways | map(select(.ph == "b") | .id) | sort) == ($ways | map(select(.ph == "e") | .id) | sort)) and
    all(.traceEvents[]; .ph == "M" or .ts > 0)' "$work/json" > "$work/said" 2>&1 || status=1
say "as JSON each span of a way begins and ends" "$status" "$(head -c 200 "$work/json"; cat "$work/said")"

# With the defaults the regions are pinned: the short way takes the requests, and is told of.
if serve default && ask default; then
  "$adverb" trace "$work/client.json" > "$work/text" 2>&1
  has "requests under key 0x[0-9a-f]+: offload \(.*\): the key is one of the peer's device"
  say "a request to pinned memory goes by the NIC, and the trace says so" $? "$(< "$work/text")"
else
  say "a request to pinned memory goes by the NIC, and the trace says so" 1 "$(< "$work/client")"
  kill "$server"
fi
wait "$server"

said() { # TEXT ARGUMENT...: what is asked for wrongly is answered by a line that names it
  local text=$1 status=0 said
  shift
  said=$("$adverb" trace "$@" 2>&1) || status=$?
  [ "$status" != 0 ] && [[ $said == *"$text"* ]]
  say "adverb trace ${*#"$work/"} is answered by \"$text\"" $? "$status $said"
}
said "name one process by its id"
said "name one process by its id" 1 2
said "there is no such process" 2147483647
said "it runs without libadverb.so" $$
said "not a statistics file with a trace" "$work/client"
said "is neither a process id" ""
said "cannot open" "$work/never"
said "cannot open" "$work"
said "cannot open" "$work/nothing"
said "for the text of a running program" --json --follow $$
