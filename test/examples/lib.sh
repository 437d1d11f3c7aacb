# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# What both scripts begin with: a network, a loopback device and a directory $work of their own, and $port. Sourced.

# In a network of its own nobody else's broker is met, and every port is free.
if [ -z "${EXAMPLES_NETWORK:-}" ]; then
  for try in "unshare -n" "unshare -rn"; do
    # shellcheck disable=SC2086 # words
    $try ip link set lo up 2> /dev/null || continue
    # shellcheck disable=SC2016 # expanded by the inner shell
    EXAMPLES_NETWORK=own exec $try sh -c 'ip link set lo up; exec "$@"' sh "$0" "$@"
  done
fi

work=$(mktemp -d)
export ADVERB_LOOPBACK_FABRIC=adverb-examples.$$
trap 'rm -rf "$work" "/dev/shm/$ADVERB_LOOPBACK_FABRIC"' EXIT
mkfifo "$work/never"
port=$((21000 + $$ % 20000))

# Until the server $1 listens, or has ended. 0A is LISTEN in /proc/net/tcp.
await_listener() {
  until grep -qi "$(printf ':%04X 0*:0000 0A' "$port")" /proc/net/tcp /proc/net/tcp6 2> /dev/null; do
    kill -0 "$1" 2> /dev/null || return 1
    read -rt 0.05 _ <> "$work/never"
  done
  return 0
}
