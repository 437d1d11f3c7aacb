#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# gate: yes
# adverb run starts the program as it is, with the environment that the library needs, or not at all.
# shellcheck source=test/preload/lib.sh
. "$(dirname "$0")/lib.sh"

library=$ADVERB_BUILD/preload/libadverb.so
if [ ! -e "$library" ]; then
  fail "libadverb.so is built" "$library is missing"
  exit 1
fi
library=$(realpath "$library")
show="$adverb run --quiet --dry-run"

# started NAME: the last run must not have reached the program.
not_started() {
  if [ -e "$scratch/started" ]; then
    fail "$1" "the program was started"
    rm "$scratch/started"
  else
    pass "$1"
  fi
}

run "$adverb" run --quiet sh -c 'exit 7'
expect "the exit status is the program's" 7 ""
run "$adverb" run --quiet sh -c 'kill -KILL $$'
expect "a fatal signal is the program's" 137 ""
run "$adverb" run --quiet -- printf '%s|' -a '' 'b c' --profile
expect_output "arguments reach the program as they are" 0 "-a||b c|--profile|"
# shellcheck disable=SC2016 # for the shell under adverb
run "$adverb" run --quiet sh -c 'echo "$0"'
expect_output "argv[0] is what was typed" 0 "sh"

run "$adverb" run --quiet --profile off env
expect_output "--profile is handed on by name" 0 "ADVERB_POLICY=off"
expect_output "the library is preloaded" 0 "LD_PRELOAD=$library"
run "$adverb" run --quiet --log debug env
expect_output "--log is handed on" 0 "ADVERB_LOG=debug"
if [[ $output == *ADVERB_POLICY* ]]; then
  fail "without a choice ADVERB_POLICY is left alone" "it is set"
else
  pass "without a choice ADVERB_POLICY is left alone"
fi
run env ADVERB_POLICY=local-only "$adverb" run --quiet env
expect_output "ADVERB_POLICY of the caller is obeyed" 0 "ADVERB_POLICY=local-only"

echo '{"version": 1}' >"$scratch/mine.json"
cd "$scratch" || exit 1
# shellcheck disable=SC2086 # two words
run $show --policy mine.json true
expect_output "a relative policy is handed on as an absolute path" 0 "ADVERB_POLICY=$scratch/mine.json"
# shellcheck disable=SC2086
run $show --no-children true
expect_output "--no-children is handed on" 0 "ADVERB_NO_CHILDREN=1"
# shellcheck disable=SC2086
LD_PRELOAD=libm.so.6 run $show true
expect_output "another preload stays, in front" 0 "LD_PRELOAD=libm.so.6:$library "
# shellcheck disable=SC2086
LD_PRELOAD=$library run $show true
expect_output "the library is preloaded once" 0 "LD_PRELOAD=$library "
# shellcheck disable=SC2086
run $show sh -c "it's"
expect_output "--dry-run prints a command that a shell can read" 0 "-c 'it'\\\\''s'"
run "$adverb" run --dry-run touch "$scratch/started"
not_started "--dry-run starts nothing"

printf '%s\n' '#!/usr/bin/env bash' 'exit 5' >"$scratch/script" && chmod 755 "$scratch/script"
run "$adverb" run "$scratch/script"
expect "a script runs" 5 ""
run "$adverb" run --dry-run "$scratch/script"
expect_output "the policy of a script is that of its interpreter" 0 "program   $(realpath "$(command -v bash)")"
printf 'exit 6\n' >"$scratch/bare" && chmod 755 "$scratch/bare"
run "$adverb" run "$scratch/bare"
expect "a script without an interpreter line runs" 6 ""

run "$adverb" run true
expect "a program without verbs gets a note" 0 "may find nothing to intercept"
if command -v ib_write_bw >/dev/null; then
  run "$adverb" run --dry-run ib_write_bw
  if [ -n "$errors" ]; then
    fail "a program with verbs gets no note" "$errors"
  else
    expect_output "a program with verbs gets no note" 0 "program"
  fi
else
  skip "a program with verbs gets no note" "no perftest here"
fi

# refused NAME PATTERN OPTION...: adverb itself must fail and start nothing.
refused() {
  run "$adverb" run "${@:3}" touch "$scratch/started"
  expect "$1: 2" 2 "$2"
  not_started "$1: nothing is started"
}
refused "a misspelt option" 'did you mean "--profile"?' --prfile x
refused "an option with a value too many" "needs a value or takes none" --dry-run=yes
refused "an empty profile" "empty" --profile=
refused "an unknown profile" 'did you mean "unpinned"?' --profile unpined
refused "an unknown level" "unknown level" --log loud
refused "two policies" "once" --policy mine.json --profile off
refused "two profiles" "once" --profile off --profile off
refused "a missing policy" "no such file" --policy /no/file
refused "a profile's name as a file" "use --profile off" --policy off
refused "a file as a profile's name" "use --policy" --profile ./mine.json
run "$adverb" run
expect "no program: 2" 2 "no program is given"
run "$adverb" run --profile
expect "an option without its value: 2" 2 "needs a value"

echo '{"version": 1, "rules": [{"register": "nnoe"}]}' >"$scratch/broken.json"
refused "a policy with errors" "$scratch/broken.json: /rules/0/register: expected" --policy broken.json
chmod 666 "$scratch/mine.json"
refused "a policy that others can write" "can be written by others" --policy mine.json

mkdir -p "$scratch/lonely/tools" && cp "$adverb" "$scratch/lonely/tools/adverb"
run "$scratch/lonely/tools/adverb" run touch "$scratch/started"
expect "without libadverb.so: 2" 2 "libadverb.so is neither in"
not_started "without libadverb.so: nothing is started"
mkdir -p "$scratch/with space/tools" && cp "$adverb" "$scratch/with space/tools/adverb"
cp "$library" "$scratch/with space/libadverb.so"
run "$scratch/with space/tools/adverb" run touch "$scratch/started"
expect "a path that LD_PRELOAD cannot hold: 2" 2 "no space or colon"
not_started "a path that LD_PRELOAD cannot hold: nothing is started"
