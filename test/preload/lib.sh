# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# For the scripts of this folder: a scratch directory, the built command, and expectations as TAP.

set -u
: "${ADVERB_BUILD:?the build directory}"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
ADVERB_REPO=${ADVERB_REPO:-$here}
# shellcheck disable=SC2034 # for the scripts
adverb=$ADVERB_BUILD/preload/tools/adverb
# Runs the command as an ordinary user.
as_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"; }
can_be_nobody() { [ "$(id -u)" = 0 ] && as_nobody test -x "$adverb" 2>/dev/null; }
# The clone may lie where only root may enter, as in root's home: then the script runs once more, with the build at a
# path that all can reach.
if [ -x "$adverb" ] && [ "$(id -u)" = 0 ] && ! can_be_nobody && unshare -m true 2>/dev/null; then
  reached=$(mktemp -d /tmp/adverb-build-XXXXXX)
  chmod 755 "$reached"
  # shellcheck disable=SC2016 # for the shell in there
  ADVERB_REPO=$ADVERB_REPO unshare -m sh -c 'mount --bind "$1" "$2" && ADVERB_BUILD=$2 exec bash "$3"' \
    sh "$ADVERB_BUILD" "$reached" "$0"
  status=$?
  rmdir "$reached"
  exit "$status"
fi
scratch=$(mktemp -d /tmp/adverb-test-XXXXXX)
chmod 755 "$scratch"
trap 'rm -rf "$scratch"' EXIT
# No policy of this machine's user may decide a test.
unset ADVERB_POLICY ADVERB_LOG LD_PRELOAD
export XDG_CONFIG_HOME=$scratch/config HOME=$scratch/home

pass() { echo "ok - $1"; }
fail() { echo "not ok - $1: $2"; }
skip() { echo "ok - $1 # SKIP $2"; }

# run COMMAND...: its status in $status, its outputs in $output and $errors.
run() {
  { "$@" >"$scratch/output" 2>"$scratch/errors" </dev/null; } 2>/dev/null
  status=$?
  output=$(cat "$scratch/output")
  errors=$(cat "$scratch/errors")
}

# expect NAME STATUS PATTERN: what the last run must have ended with and said on stderr (a shell
# pattern for a part of it).
expect() {
  # shellcheck disable=SC2053 # the pattern is meant as one
  if [ "$status" != "$2" ]; then
    fail "$1" "exit status $status instead of $2 ($(head -c 200 <<<"$errors" | tr '\n' ' '))"
  elif [[ $errors != *$3* ]]; then
    fail "$1" "stderr lacks \"$3\": $(head -c 300 <<<"$errors" | tr '\n' ' ')"
  else
    pass "$1"
  fi
}

# expect_output NAME STATUS PATTERN: the same for stdout.
expect_output() {
  errors=$output
  expect "$1" "$2" "$3"
}

