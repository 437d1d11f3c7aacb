# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# Sourced by the verify scripts: stock and adverb, each with the same words, then the comparison.
# shellcheck source=test/system/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

verify=$(find "${ADVERB_BUILD:-build}" -name verify -type f -perm -1 | head -n 1)
compare=$(dirname "${BASH_SOURCE[0]}")/../verify/verify-compare
logs=${VM_SHARE:-$scratch}
verify_seconds=${VERIFY_SECONDS:-420}

have_adverb() { command -v adverb > /dev/null; }

# run WRAP ROLE LOG [OPTION]...: verify under WRAP (may be empty). Says how it ended.
run_verify() {
  local wrap=$1 role=$2 log=$3 status=0
  shift 3
  # shellcheck disable=SC2086 # the wrap is words
  # librxe takes a request of any opcode, and its kernel fails it. A datagram too long for its
  # receive the kernel drops, and the receive stays first: nothing arrives any more.
  timeout -k 5 "$verify_seconds" $wrap "$verify" --role "$role" --device rxe0 --log "$log" \
    --except post.unknown_behind --except flow.receive_too_small_ud "$@" \
    > "$scratch/out" 2>&1 || status=$?
  sed "s/^/# ${wrap:+adverb }/" "$scratch/out" | head -n 50
  return "$status"
}

# under POLICY: the words that run a program under a profile, or one of test/verify/policies.
under() {
  local file
  file=$(dirname "${BASH_SOURCE[0]}")/../verify/policies/$1.json
  if [ -e "$file" ]; then echo "adverb run --policy $file --"; else echo "adverb run --profile $1 --"; fi
}

# verify_both NAME ROLE POLICIES [OPTION]...: a stock run that must be right by itself, a run under
# adverb with each of the policies, and one TAP line for each case that both saw.
verify_both() {
  local name=$1 role=$2 policies=$3 policy
  shift 3
  rm -f "$logs/$name".*.log
  if run_verify "" "$role" "$logs/$name.stock.log" "$@"; then
    ok "$name stock is right by itself"
  else
    not_ok "$name stock is right by itself" "$(grep -hE 'BAD$| died | watchdog ' "$logs/$name.stock.log" | head -n 1)"
  fi
  if ! have_adverb; then
    skip "$name under adverb" "adverb is not built"
    return
  fi
  for policy in $policies; do
    run_verify "$(under "$policy")" "$role" "$logs/$name.$policy.log" "$@" || echo "# adverb: exit status $?"
    "$compare" --prefix "$name $policy" "$logs/$name.stock.log" "$logs/$name.$policy.log"
  done
  return 0
}
