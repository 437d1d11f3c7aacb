#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# gate: yes
# adverb policy: checks, explanations, and which policy is found where.
# shellcheck source=test/preload/lib.sh
. "$(dirname "$0")/lib.sh"

while read -r file; do
  cp "$file" "$scratch/checked.json" && chmod 644 "$scratch/checked.json"
  run "$adverb" policy check "$scratch/checked.json"
  expect "${file#"$ADVERB_REPO"/} is valid" 0 ""
done < <(find "$ADVERB_REPO/policy" "$ADVERB_REPO/examples" -name '*.json' ! -name '*.schema.json')

echo '{"version": 1}' >"$scratch/good.json"
echo '{"version": 1, "ruels": [], "staging": 5}' >"$scratch/bad.json"
run "$adverb" policy check "$scratch/good.json" "$scratch/bad.json"
expect "check reports unknown keys with their pointer" 1 "$scratch/bad.json: /ruels: unknown key \"ruels\"; did you mean \"rules\"?"
expect "check reports every error" 1 "$scratch/bad.json: /staging: expected a size"
expect_output "check reports good files beside bad ones" 1 "$scratch/good.json: ok"
printf '{"version": 1,\n  "rules": [,]\n}' >"$scratch/syntax.json"
run "$adverb" policy check "$scratch/syntax.json"
expect "check reports syntax errors with line and column" 1 "$scratch/syntax.json:2:13: syntax error"
run "$adverb" policy check "$scratch/missing.json"
expect "check reports a missing file" 1 "there is no such file"
run "$adverb" policy check
expect "check without a file: 2" 2 "no file is given"
run "$adverb" policy chek
expect "an unknown subcommand: 2, with a suggestion" 2 "did you mean \"check\"?"
run "$adverb" polcy
expect "an unknown command: 2, with a suggestion" 2 "did you mean \"policy\"?"
run "$adverb" policy show mpi
printf '%s\n' "$output" >"$scratch/mpi.json"
run "$adverb" policy check "$scratch/mpi.json"
expect_output "what show prints is a valid policy" 0 "ok"
page=$ADVERB_BUILD/preload/tools/adverb-policy.5
sed -n '/^\.EX/,/^\.EE/{/^\./!p}' "$page" >"$scratch/example.json"
run "$adverb" policy check "$scratch/example.json"
expect "the example of adverb-policy(5) is valid" 0 ""
missing=$("$adverb" policy show schema | python3 -c '
import json, sys
schema, page = json.load(sys.stdin), open(sys.argv[1]).read().replace("\\", "")
def keys(part):
    for name, child in part.get("properties", {}).items():
        if not name.startswith("$"):
            yield name
            yield from keys(child)
wanted = [*keys(schema), *keys(schema["definitions"]["rule"])]
print(*[name for name in wanted if f".BR \"{name}\"" not in page])' "$page")
if [ -z "$missing" ]; then
  pass "adverb-policy(5) explains every key"
else
  fail "adverb-policy(5) explains every key" "it lacks $missing"
fi
run "$adverb" policy list
expect_output "list names the profiles" 0 "unpinned"
run sh -c "exec '$adverb' policy list >/dev/full"
expect "output that cannot be written: 1" 1 "cannot write the output"

run "$adverb" policy explain --profile unpinned sh
expect_output "explain says what happens to regions" 0 "all: not pinned but for what peers use again and again (by rule \"all-regions\")"
expect_output "explain says which way requests take, by the library's own choice" 0 \
  "WRITE, WRITE with immediate, READ: unload (requests that the owner's CPU carries): the owner has not pinned"
missing=""
while read -r way; do
  [[ $output == *": $way ("* ]] || missing+=" $way"
done < <(sed -n 's/^WAY(\([a-z_]*\),.*/\1/p' "$ADVERB_REPO/preload/ways/ways.def")
if [ -z "$missing" ]; then pass "explain shows every way"; else fail "explain shows every way" "it lacks$missing"; fi
run "$adverb" policy explain --profile off sh
expect_output "explain says when nothing is changed" 0 "nothing is changed"
cat >"$scratch/mixed.json" <<'POLICY'
{"version": 1, "rules": [
  {"name": "other", "match": {"program": "other"}, "register": "none"},
  {"name": "small", "match": {"device": "rxe*", "max_size": "64KiB"}, "register": "pinned"},
  {"name": "large", "match": {"device": "rxe*"}, "register": "none"},
  {"name": "near", "match": {"peer": "10.0.0.0/8"}, "order": "relaxed"}]}
POLICY
run "$adverb" policy explain --policy "$scratch/mixed.json" sh
expect_output "explain tells sizes apart" 0 "regions above 64KiB"
expect_output "explain tells devices apart" 0 "any other device"
expect_output "explain tells peers apart" 0 "queue pairs to 10.0.0.0/8"
if [[ $output == *'"other"'* ]]; then
  fail "explain leaves out rules for other programs" "it shows them"
else
  pass "explain leaves out rules for other programs"
fi
run "$adverb" policy explain --device mlx5_0 --policy "$scratch/mixed.json" sh
expect_output "explain answers for one device" 0 "device mlx5_0"
cat >"$scratch/steered.json" <<'POLICY'
{"version": 1, "serve": false, "rules": [
  {"name": "small", "match": {"opcode": "write", "length": {"min": "8B", "max": "4KiB"}}, "steer": "auto"},
  {"name": "low", "match": {"peer": "10.0.0.0/8", "remote_address": {"from": 4096, "to": "0x1fff"}}, "steer": "unload"},
  {"name": "rc", "match": {"qp_type": ["RC"], "opcode": ["read"]}, "steer": "offload"}]}
POLICY
run "$adverb" policy explain --policy "$scratch/steered.json" sh
expect_output "explain lists steering rules among the rest" 0 "/rules/0 \"small\": steer auto"
expect_output "explain says who carries which requests" 0 "    WRITE from 8B up to 4KiB: the NIC or the owner's CPU, by measurement (by rule \"small\")
    WRITE, READ at addresses from 0x1000 to 0x1fff: the owner's CPU (by rule \"low\")
    READ: the NIC (by rule \"rc\")
    all others: the NIC (no rule says otherwise)"
expect_output "explain tells types of queue pairs apart" 0 "requests of UC to pinned regions of other peers"
expect_output "explain says that the CPU serves no pinned region" 0 "serve                false: the CPU carries no request to a pinned region"
run "$adverb" policy explain --profile steer sh
expect_output "explain says who carries all other requests" 0 "    all others: the NIC (by rule \"other-requests\")"
expect_output "explain says that the CPU serves pinned regions" 0 "serve                true: the CPU carries peers' requests"
run "$adverb" policy explain --profile unpinned sh
if [[ $output == *"to pinned regions"$'\n'* ]]; then
  fail "explain is silent on steering without a rule for it" "$output"
else
  pass "explain is silent on steering without a rule for it"
fi
printf '{"version": 1, "rules": [{"register": "none", "peers": "none", "order": "strict"}, {"steer": "auto"}]}' \
  >"$scratch/unasked.json"
run "$adverb" policy explain --policy "$scratch/unasked.json" sh
expect_output "explain says that steering needs a peer that is asked" 0 "all: the NIC (the peer is not asked"
run "$adverb" policy explain no-such-program
expect_output "explain says why a program cannot be run" 127 "cannot be run under adverb: no such program"
run "$adverb" policy explain sh
if [ ! -e /etc/adverb/policy.json ]; then
  expect_output "without any file the built-in default holds" 0 "policy    built-in default"
fi
mkdir -p "$scratch/config/adverb" && cp "$scratch/good.json" "$scratch/config/adverb/policy.json"
run "$adverb" policy explain sh
expect_output "the user's file comes before the default" 0 "$scratch/config/adverb/policy.json (this user's)"
ADVERB_POLICY=off run "$adverb" policy explain sh
expect_output "ADVERB_POLICY comes before the user's file" 0 "profile off (named by ADVERB_POLICY)"
ADVERB_POLICY=off run "$adverb" policy explain --profile mpi sh
expect_output "the command line comes before ADVERB_POLICY" 0 "profile mpi (named on the command line)"

# A private /etc, so that the host's own stays as it is.
# shellcheck disable=SC2016 # for the shell in there
etc_policy='mount -t tmpfs none /etc && mkdir -p /etc/adverb && cp "$1" /etc/adverb/policy.json &&
  unset XDG_CONFIG_HOME && exec "$2" policy explain /bin/sh'
if [ "$(id -u)" = 0 ] && unshare -m sh -c 'mount -t tmpfs none /etc' 2>/dev/null; then
  run unshare -m sh -c "$etc_policy" sh "$scratch/good.json" "$adverb"
  expect_output "the host's file comes before the default" 0 "/etc/adverb/policy.json (this host's)"
else
  skip "the host's file comes before the default" "needs root and a mount namespace"
fi

# The environment of a setuid program is its caller's.
cp "$adverb" "$scratch/secure" && chmod 4755 "$scratch/secure"
if can_be_nobody && ! findmnt -nT "$scratch" -o OPTIONS | grep -q nosuid; then
  run as_nobody env ADVERB_POLICY=off XDG_CONFIG_HOME="$scratch/config" "$scratch/secure" policy explain sh
  if [[ $output == *"$scratch"*"this user"* || $output == *"profile off"* ]]; then
    fail "a setuid process ignores the environment" "$output"
  else
    pass "a setuid process ignores the environment"
  fi
else
  skip "a setuid process ignores the environment" "needs root and a mount with setuid"
fi
