#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# A whole RNIC in software reads and writes a region while its pages come and go, politely and not; and
# what it reads is wrong when the module does not keep a page in place while it is copied.
# vm: nodes=2 swap=512 device=edu disk=320 disk=320
# newest: yes
# timeout: 240
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
need_soft_rnic

# A program with a memory region of its own, which knows nothing of all this.
pingpong() {
  local words=(ibv_rc_pingpong -d rxe0 -g 1 -n 50 -c) tries=0 server
  timeout 60 "${words[@]}" > /dev/null 2>&1 &
  server=$!
  until "${words[@]}" 127.0.0.1 > /dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 50 ] && kill -0 "$server" 2> /dev/null || break
    sleep 0.1
  done
  if wait "$server"; then
    echo "ok - programs that pin their memory run over a soft RNIC as ever"
  else
    echo "not ok - programs that pin their memory run over a soft RNIC as ever: ibv_rc_pingpong failed"
  fi
}

load rdma_rxe
pingpong
"$programs/np_softrnic_rules"
status=$?
"$programs/np_softrnic" || status=1
unload rdma_rxe || exit 1
# It ends with the first.
export ADVERB_SOFTRNIC_OPERATIONS=20000
because="wrong bytes" must_notice 9 np_softrnic "hostile READs show" "keeping a page in place for a copy" rdma_rxe
exit "$status"
