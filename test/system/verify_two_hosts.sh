#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=2
# timeout: 900
# The verifier across two hosts. Host 0 serves, stock and then under adverb; host 1 drives and compares.
. "$(dirname "$0")/verify_cases.sh"

serve() { # PORT WRAP...
  local port=$1
  shift
  "$@" "$verify" --role server --port "$port" --device rxe0 > "$scratch/server.$port" 2>&1 &
  await 20 listening "$port" $!
}

if serves; then
  serve 18600
  # shellcheck disable=SC2046,SC2086 # the wrap is words
  ! have_adverb || serve 18601 $(under unpinned)
  vm-barrier verify.listening
  vm-barrier verify.done
  sed 's/^/# server: /' "$scratch"/server.* | head -n 40
  # shellcheck disable=SC2046 # one process id per word
  kill $(jobs -p) 2> /dev/null
  wait
  exit 0
fi

vm-barrier verify.listening
trap 'vm-barrier verify.done; rm -rf "$scratch"' EXIT
if run_verify "" client "$logs/hosts.stock.log" --peer "$VM_IP_0" --port 18600; then
  ok "hosts stock is right by itself"
else
  not_ok "hosts stock is right by itself" "$(grep -hE 'BAD$| died | watchdog ' "$logs/hosts.stock.log" | head -n 1)"
fi
if have_adverb; then
  run_verify "$(under unpinned)" client "$logs/hosts.adverb.log" --peer "$VM_IP_0" --port 18601 || echo "# adverb: exit status $?"
  "$compare" --prefix hosts "$logs/hosts.stock.log" "$logs/hosts.adverb.log"
else
  skip "hosts under adverb" "adverb is not built"
fi
exit 0
