# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# Sourced by the scripts of test/liar's attacks: its victims are one user here and the liar is another, on soft-RoCE.
# shellcheck source=test/system/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
set -o pipefail # a liar that ends early is to be seen

# attacks_at LEVEL [OPTION]...: all of them, but those that the options leave out; ADVERB_LIAR_PATTERN: of these, those
# whose names it is found in.
attacks_at() {
  local level=$1
  shift
  # Emulated processors take ten times as long; soft-RoCE numbers keys in steps that chance adds to.
  /usr/bin/python3 "$(dirname "${BASH_SOURCE[0]}")/../liar/liar.py" --device rxe0 --gid 1 --level "$level" \
    --victims nobody --liar games --slow 5 --timeout 14 --step 1 --rounds 50 --part 8 "$@" \
    "$ADVERB_BUILD/preload/libadverb.so" "$ADVERB_BUILD/test/liar/victim" "${ADVERB_LIAR_PATTERN:-}" 2>&1 |
    sed -u "s/^ok - /ok - level $level: /; s/^not ok - /not ok - level $level: /"
}
