#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=2
# timeout: 1500
# The verifier across two hosts. Host 0 serves, stock and under profiles of adverb's; host 1 drives and compares.
. "$(dirname "$0")/verify_cases.sh"

profiles="unpinned far"

serve() { # PORT WRAP...
  local port=$1
  shift
  "$@" "$verify" --role server --port "$port" --device rxe0 > "$scratch/server.$port" 2>&1 &
  await 20 listening "$port" $!
}

if serves; then
  serve 18600
  port=18601
  for profile in $profiles; do
    # shellcheck disable=SC2046 # the wrap is words
    ! have_adverb || serve $((port++)) $(under "$profile")
  done
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
  port=18601
  for profile in $profiles; do
    log=$logs/hosts.$profile.log
    run_verify "$(under "$profile")" client "$log" --peer "$VM_IP_0" --port $((port++)) || echo "# adverb: exit status $?"
    "$compare" --prefix "hosts $profile" "$logs/hosts.stock.log" "$log"
  done
else
  skip "hosts under adverb" "adverb is not built"
fi
exit 0
