#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Debian's own programs, unmodified, over the loopback device: perftest.sh DIRECTORY-OF-LIBRARY.
# TAP on stdout; a program that fails leaves its last lines as a diagnostic.
set -u
export LD_LIBRARY_PATH=$1
export ADVERB_LOOPBACK_FABRIC=adverb-perftest.$$
work=$(mktemp -d)
port=$((21000 + $$ % 20000))
number=0
failed=0
trap 'rm -rf "$work" "/dev/shm/$ADVERB_LOOPBACK_FABRIC"' EXIT

report() { # verdict name [reason]
  number=$((number + 1))
  [ "$1" = ok ] || failed=1
  echo "$1 $number - $2${3:+: $3}"
}

listening() { # port: 0A is LISTEN in /proc/net/tcp
  grep -qi "$(printf ':%04X 0*:0000 0A' "$1")" /proc/net/tcp /proc/net/tcp6 2>/dev/null
}

pair() { # name program arguments...
  local name=$1 program=$2 server status
  shift 2
  if ! command -v "$program" >/dev/null; then
    number=$((number + 1))
    echo "ok $number - $name # SKIP $program is not installed"
    return
  fi
  port=$((port + 1))
  timeout 90 "$program" -d lo0 -p $port "$@" >"$work/server" 2>&1 &
  server=$!
  while kill -0 $server 2>/dev/null && ! listening $port; do
    read -rt 0.05 _ <>"$work/never" || true
  done
  timeout 90 "$program" -d lo0 -p $port "$@" 127.0.0.1 >"$work/client" 2>&1
  status=$?
  [ $status -eq 0 ] || kill $server 2>/dev/null
  wait $server
  local served=$?
  if [ $status -eq 0 ] && [ $served -eq 0 ]; then
    report ok "$name"
  else
    report 'not ok' "$name" "client exited $status, server $served"
    sed 's/^/# client: /' "$work/client" | tail -n 4
    sed 's/^/# server: /' "$work/server" | tail -n 4
  fi
}

mkfifo "$work/never"
if ibv_devinfo -d lo0 >"$work/info" 2>&1 && grep -q PORT_ACTIVE "$work/info"; then
  report ok 'ibv_devinfo sees an active port'
else
  report 'not ok' 'ibv_devinfo sees an active port' "$(tail -n 1 "$work/info")"
fi
for verb in write read send atomic; do
  pair "ib_${verb}_bw" "ib_${verb}_bw" -n 1000
  pair "ib_${verb}_lat" "ib_${verb}_lat" -n 500
done
pair 'ib_write_bw, 8 MiB' ib_write_bw -s 8388608 -n 20
pair 'ib_read_bw, 1 byte' ib_read_bw -s 1 -n 1000
pair 'ib_write_bw, both directions' ib_write_bw -b -n 500
pair 'ib_write_bw, 8 QPs' ib_write_bw -q 8 -n 500
pair 'ib_write_bw, inline' ib_write_bw -s 64 -I 64 -n 1000
pair 'ib_write_bw over UC' ib_write_bw -c UC -n 500
pair 'ib_send_bw by events' ib_send_bw -e -n 500
pair 'ib_send_bw over an SRQ' ib_send_bw -r 64 --use-srq -n 500
pair 'ib_send_bw over UD' ib_send_bw -c UD -s 1024 -n 500
pair 'ib_send_lat by events' ib_send_lat -e -n 200
pair 'ibv_rc_pingpong' ibv_rc_pingpong -g 1 -n 500
pair 'ibv_rc_pingpong by events' ibv_rc_pingpong -g 1 -e -n 500
pair 'ibv_uc_pingpong' ibv_uc_pingpong -g 1 -n 500
pair 'ibv_srq_pingpong' ibv_srq_pingpong -g 1 -n 500
echo "1..$number"
exit $failed
