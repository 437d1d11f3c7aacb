# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# Sourced by the checks: TAP lines with the finding behind them. The working directory is the
# repository (the runner's promise, and kept here for a call by hand).
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
failures=0

ok() { echo "ok - $1"; }
not_ok() {
  echo "not ok - $1: $2"
  failures=$((failures + 1))
}

# Tracked files that match, and still exist.
tracked() {
  git ls-files -- "$@" | while read -r file; do [ ! -f "$file" ] || echo "$file"; done
}

# check NAME COMMAND...: the command exits with 0.
check() {
  local name=$1 said
  shift
  if said=$("$@" 2>&1); then
    ok "$name"
  else
    not_ok "$name" "see below"
    echo "$said"
  fi
}

# check_empty NAME COMMAND...: the command prints nothing.
check_empty() {
  local name=$1 said
  shift
  said=$("$@")
  if [ -z "$said" ]; then
    ok "$name"
  else
    not_ok "$name" "$(echo "$said" | wc -l) found"
    echo "$said"
  fi
}

finish() { [ "$failures" = 0 ]; }
