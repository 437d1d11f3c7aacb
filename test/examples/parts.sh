#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# parts.sh DIRECTORY-OF-LOOPBACK LIBADVERB PARTIAL FAR-COPY: the examples of adverb.h over the loopback device, with a
# good link and with bad ones; one TAP line for each. The programs compare every byte themselves.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
export LD_LIBRARY_PATH=$1
adverb=$2 partial=$3 far_copy=$4
# shellcheck source=test/examples/lib.sh
. "$here/lib.sh"
export HOME=$work XDG_CONFIG_HOME=$work
unset LD_PRELOAD ADVERB_POLICY ADVERB_LOG ADVERB_LOOPBACK_LINK
runtime=$(ldd "$partial" | awk '$1 ~ /^lib(asan|tsan)\.so/ { print $3 }')
bad=loss=2e-2,burst=3,duplicate=1e-2,reorder=1e-2:8,delay=2ms

# over LINK SEED PROGRAM...: a seed for each end. partial has the library preloaded; far-copy finds it, as its other ways
# are to be the device's own.
over() {
  local link=seed=$2${1:+,$1} found=LD_LIBRARY_PATH=$LD_LIBRARY_PATH:${adverb%/*}
  shift 2
  [ "$1" = "$far_copy" ] || found=LD_PRELOAD=${runtime:+$runtime:}$adverb
  exec timeout -k 5 120 env "ADVERB_LOOPBACK_LINK=$link" "$found" "$@"
}

# both PROGRAM LINK SERVER-OPTIONS CLIENT-WORDS: their exit statuses in $statuses, their words in $work/server and
# $work/client.
both() {
  local program=$1 server
  local -a serving asking
  read -ra serving <<< "$3"
  read -ra asking <<< "$4"
  port=$((port + 1)) statuses=""
  rm -f "$work/client"
  over "$2" 1 "$program" lo0 --port "$port" "${serving[@]}" > "$work/server" 2>&1 &
  server=$!
  if await_listener "$server"; then
    (over "$2" 2 "$program" lo0 --port "$port" "${asking[@]}" 127.0.0.1) > "$work/client" 2>&1
    statuses="client $?, "
  fi
  wait "$server"
  statuses+="server $?"
}

# Of what was just run: its statuses, and a line of each end for each "END: LINE".
verdict() { # NAME STATUSES LINE...
  local name=$1 why=""
  [ "$statuses" = "$2" ] || why="exit statuses: $statuses"
  shift 2
  for line; do
    grep -qE -- "${line#*: }" "$work/${line%%: *}" || why="${why:+$why; }the ${line%%: *} does not say '${line#*: }'"
  done
  if [ -z "$why" ]; then
    echo "ok - $name"
  else
    echo "not ok - $name: $why"
    tail -n 20 "$work/server" "$work/client" 2> /dev/null | cut -c 1-300 | sed 's/^/# /'
  fi
}

good="client 0, server 0"
summed="server: ^server: the sum is [0-9a-f]{16}, as the client says$"
for kind in good bad; do
  [ "$kind" = good ] && link="" || link=$bad
  both "$partial" "$link" "" ""
  ended=$(sed -n 's/^server: the gradient ended: //p' "$work/server")
  verdict "partial over a $kind link: every chunk is summed once, and both ends say how a gradient ended" \
    "$good" "$summed" "server: (99 % of the gradient is there|the deadline has passed)$" \
    "server: ended: (complete|partial)$" "client: ^client: the gradient ended: $ended$" "server: every value that came is right$"
done
both "$partial" "$bad" "--deadline 60000" "--straggle 2"
verdict "partial goes on at 99 % and names the bytes that a straggler never sent" "$good" "$summed" \
  "server: 99 % of the gradient is there$" "server: the gradient ended: partial$" "client: the gradient ended: partial$" \
  "server: ^server: bytes 16646144 to 16777215 are missing$" "server: has 254 of 256 chunks .*every value that came is right$"
both "$partial" "" "--deadline 300" "--straggle 256"
verdict "partial goes on at its deadline" "$good" "server: the deadline has passed$" "client: the gradient ended: partial$" \
  "server: ^server: bytes 0 to 16777215 are missing$"

for transport in uc ud; do
  both "$far_copy" "$bad" "" "--bytes 4M --message 256K --pairs 2 --link-loss 2e-2 --transport $transport --repair all"
  lines=("client: ^raw +[0-9.]+ +[0-9.]+ +- +- +[0-9]+  -$" "server: ^receiver: raw: [0-9]+ packets arrived$")
  for way in nack timeout xor mds auto rc; do
    lines+=("client: ^$way +[0-9.]+ +[0-9.]+ .*  same$" "server: ^receiver: $way: 4194304 bytes, .*the same as the sender's$")
  done
  verdict "far-copy copies by every repair over a bad link, $transport" "$good" "${lines[@]}"
done
head -c 1000001 /dev/urandom > "$work/original"
both "$far_copy" "$bad" "$work/copy" "--repair mds --message 64K $work/original"
cmp -s "$work/original" "$work/copy" || statuses+=", and the file differs"
verdict "far-copy copies a file" "$good"
both "$far_copy" "" "" "--bytes 16M --rate 1M --wait 1 --repair nack"
verdict "far-copy ends at its bound, and says what did not arrive" "client 1, server 1" \
  "client: ^nack +failed: .* within 1 s$" "server: ^receiver: nack: bytes [0-9]+ to 16777215 did not arrive$"

# What is asked for wrongly is answered by the usage.
refuses() { # PROGRAM WORD...
  local said status=0
  said=$(timeout -k 2 60 "$@" 2>&1 < /dev/null) || status=$?
  if [ "$status" = 2 ] && grep -q '^usage: ' <<< "$said"; then
    echo "ok - ${*##*/} is refused"
  else
    echo "not ok - ${*##*/} is refused: status $status, $(head -n 1 <<< "$said")"
  fi
}

refuses "$partial"
refuses "$partial" lo0:first
refuses "$partial" lo0 --deadline 0
refuses "$partial" lo0 --straggle 257 server
refuses "$partial" lo0 server more
refuses "$far_copy" lo0 --repair rc,hope --bytes 1M server
refuses "$far_copy" lo0 --bytes 1T server
refuses "$far_copy" lo0 --message 1000 --bytes 1M server
refuses "$far_copy" lo0 --pairs 65 --bytes 1M server
refuses "$far_copy" lo0 --transport rc --bytes 1M server
refuses "$far_copy" lo0 --bytes 1M
refuses "$far_copy" lo0 --repair nack
