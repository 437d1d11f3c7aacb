# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# Sourced by the scripts of test/liar's attacks between hosts: the owner of secrets is on host 0, the honest initiator on
# host 1, both of one user, and the liar on either, another user or, on the initiator's host, one of the same number.
# Left out, as it has no meaning: to register others' queue pairs with the broker from another host, which takes
# registrations by a Unix socket alone. What else is left out hosts.py of test/liar names with its reason.
# shellcheck source=test/system/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
set -o pipefail # a liar that ends early is to be seen

liar=$(dirname "${BASH_SOURCE[0]}")/../liar
keeper_port=7770 # the next one to be used

# attacks_beside WHOM LEVEL USER [OPTION]...: all that have a meaning there of a liar who is that user of the host of
# WHOM, owner or initiator; ADVERB_LIAR_PATTERN: of these, those whose names it is found in.
attacks_beside() {
  local whom=$1 level=$2 user=$3 port=$((keeper_port++)) here=0 other=$VM_IP_1 secret=$VM_SHARE/liar.${VM_JOB:-} far=""
  shift 3
  [ "$whom" = owner ] || { here=1; other=$VM_IP_0; }
  if [ "$VM_HOST" = 0 ]; then
    ADVERB_LIAR_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    (umask 077 && echo "$ADVERB_LIAR_SECRET" > "$secret.$port")
  fi
  vm-barrier "liar.secret.$port" || return
  ADVERB_LIAR_SECRET=$(cat "$secret.$port")
  export ADVERB_LIAR_SECRET
  if [ "$VM_HOST" != "$here" ]; then
    /usr/bin/python3 "$liar/keeper.py" "$other" "$port" nobody > "$scratch/keeper.$port" 2>&1 &
    far=$!
    await 60 listening "$port" "$far"
  fi
  vm-barrier "liar.keeper.$port" || return
  if [ "$VM_HOST" = "$here" ]; then
    # Emulated processors take ten times as long, and two hosts share this machine's: one may stand still for longer
    # than a queue pair of another host usually waits.
    /usr/bin/python3 "$liar/liar.py" --device rxe0 --gid 1 --level "$level" --other "$other" --keeper "$port" \
      --beside "$whom" --victims nobody --liar "$user" --slow 5 --timeout 16 --step 1 --rounds 50 --part 8 "$@" \
      "$ADVERB_BUILD/preload/libadverb.so" "$ADVERB_BUILD/test/liar/victim" "${ADVERB_LIAR_PATTERN:-}" 2>&1 |
      sed -u "s/^ok - /ok - level $level, $user beside the $whom: /; s/^not ok - /not ok - level $level, $user beside the $whom: /" ||
      not_ok "level $level, $user beside the $whom" "the liar has ended early"
  fi
  vm-barrier "liar.done.$port" || return
  if [ -n "$far" ]; then
    sed 's/^/# keeper: /' "$scratch/keeper.$port"
    kill "$far"
    wait "$far"
  fi
  return 0
}
