#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# gate: yes
# adverb plan: tables, JSON, plot, simulation; what is wrong with an option.
# shellcheck source=test/preload/lib.sh
. "$(dirname "$0")/lib.sh"

link=(--rtt 25ms --bandwidth 400Gbit)
all=("${link[@]}" --loss 1e-4 --size 128MiB)

# expect_text NAME TEXT: the last run's output, whole.
expect_text() {
  if [ "$status" = 0 ] && [ "$output" = "$2" ]; then
    pass "$1"
  else
    fail "$1" "exit status $status, difference: $(diff <(echo "$2") <(echo "$output$errors") | head -4 | tr '\n' ' ')"
  fi
}

# expect_json NAME CONDITION: what Python finds true of the last run's output, the object `out`.
expect_json() {
  if [ "$status" = 0 ] && problem=$(python3 -c "
import json, sys
out = json.load(open(sys.argv[1]))
schemes = {entry['name']: entry for entry in out.get('schemes', [])}
near = lambda a, b: abs(a - b) <= 1e-3 * b
assert ($2)" "$scratch/output" 2>&1); then
    pass "$1"
  else
    fail "$1" "exit status $status: $(tail -n 1 <<<"$errors$problem")"
  fi
}

run "$adverb" plan "${all[@]}"
expect_text "a plan compares the schemes and says which the library would choose" \
"128MiB, chunks of 64KiB, packets of 4096 bytes, 400 Gbit/s, round trip 25 ms, packet loss 1.0e-04 (chunk loss 0.16 %)

scheme                  mean       p99     p99.9  slowdown    sent  fallback
ideal               27.68 ms  27.68 ms  27.68 ms     1.000   1.000         -
go-back-N           109.6 ms         -         -     3.959  31.521         -
SR timeout, chunk   99.56 ms  102.7 ms  177.2 ms     3.596   1.002         -
SR NACK, chunk      51.18 ms  52.68 ms  77.18 ms     1.849   1.002         -
SR timeout, packet  99.19 ms  102.7 ms  102.7 ms     3.583   1.000         -
SR NACK, packet     51.06 ms  52.68 ms  52.68 ms     1.844   1.000         -
XOR 32,8            28.40 ms  28.36 ms  28.36 ms     1.026   1.250   8.2e-04
MDS 32,8            28.36 ms  28.36 ms  28.36 ms     1.024   1.250   2.8e-25
MDS 32,2            27.85 ms  27.85 ms  27.85 ms     1.006   1.063   6.1e-06

auto would choose MDS 32,2: mean 27.85 ms"
run "$adverb" plan --rtt 0.02ms --bandwidth 50GB/s --loss 0.01% --size 1MiB --chunk 16KiB --mtu 1024 --code mds:16,4
expect_text "units, chunk, MTU and codes are the user's" \
"1MiB, chunks of 16KiB, packets of 1024 bytes, 400 Gbit/s, round trip 20 us, packet loss 1.0e-04 (chunk loss 0.16 %)

scheme                  mean       p99     p99.9  slowdown   sent  fallback
ideal               40.97 us  40.97 us  40.97 us     1.000  1.000         -
go-back-N           43.02 us         -         -     1.050  1.098         -
SR timeout, chunk   45.87 us  99.44 us  101.3 us     1.119  1.002         -
SR NACK, chunk      41.97 us  59.44 us  61.29 us     1.024  1.002         -
SR timeout, packet  45.81 us  98.95 us  100.8 us     1.118  1.000         -
SR NACK, packet     41.92 us  58.95 us  60.80 us     1.023  1.000         -
MDS 16,4            46.21 us  46.21 us  46.21 us     1.128  1.250   9.9e-15

auto would choose SR NACK, packet: mean 41.92 us"
run "$adverb" plan "${link[@]}" --loss 0 --size 128MiB
expect_output "without loss nothing is slower than ideal but by its parity" 0 \
  "SR NACK, packet     27.68 ms  27.68 ms  27.68 ms     1.000  1.000         -"
expect_output "without loss no parity is chosen" 0 "auto would choose SR NACK, packet: mean 27.68 ms"

run "$adverb" plan "${all[@]}" --json
expect_json "JSON has every number" "near(schemes['ideal']['model']['mean_ns'], 27.684e6) and
  near(schemes['MDS 32,8']['model']['p999_ns'], 28.355e6) and out['auto']['name'] == 'MDS 32,2' and
  schemes['go-back-N']['model']['p99_ns'] is None and schemes['MDS 32,8']['sent'] == 1.25 and
  near(schemes['XOR 32,8']['fallback_by_chunk'], 1.2961e-2) and out['chunk_bytes'] == 65536"
run "$adverb" plan "${link[@]}" --size 128MiB --sweep loss --json
expect_json "a sweep needs no value of its input" "'schemes' not in out and
  [point['value'] for point in out['sweep']][::18] == [1e-7, 0.1] and
  near(out['sweep'][9]['mean_ns']['SR NACK, packet'], 51.06e6)"
run "$adverb" plan "${link[@]}" --loss 1e-4 --sweep size
expect_output "a sweep over sizes has a line for each" 0 \
  "1MiB          25.02 ms   25.66 ms            26.92 ms         25.65 ms  25.03 ms  25.03 ms  MDS 32,2"
run "$adverb" plan --bandwidth 400Gbit --size 128MiB --loss 1e-4 --sweep rtt
expect_output "a sweep over round trips has a line for each" 0 \
  "200 ms      202.7 ms   858.1 ms            779.5 ms         394.5 ms  203.7 ms  203.4 ms         MDS 32,2"
expect_output "the line says which scheme the library would choose" 0 \
  "3.855 ms  SR NACK, packet
1 ms"

simulated=("${link[@]}" --size 128MiB --simulate)
run "$adverb" plan "${simulated[@]}" 20 --loss 0
expect_output "without loss all simulated messages take the ideal time" 0 \
  "SR NACK, packet     27.68 ms  27.68 ms  27.68 ms     1.000  1.000         -   27.68 ms  27.68 ms .. 27.68 ms  27.68 ms  27.68 ms .. -  27.68 ms  27.68 ms .. -"
expect_output "the table says how many messages were simulated" 0 "simulated: 20 messages of each scheme"
# 400 messages: the mean is within a tenth of the model's even where their times differ most.
run "$adverb" plan "${simulated[@]}" 400 --loss 2e-3 --json
expect_json "the simulation agrees with the model where the model is exact" "all(
  abs(schemes[name]['simulated']['mean_ns']['value'] / schemes[name]['model']['mean_ns'] - 1) < bound
  for name, bound in (('SR timeout, packet', 0.1), ('SR NACK, packet', 0.1), ('MDS 32,8', 0.002)))"
expect_json "each simulated figure lies within its interval" "all(
  entry['simulated'][figure]['low'] <= entry['simulated'][figure]['value'] <= (
    entry['simulated'][figure]['high'] or float('inf'))
  for entry in schemes.values() if 'simulated' in entry for figure in ('mean_ns', 'p99_ns', 'p999_ns'))"
expect_json "400 messages bound p99 from above, and not p99.9" "all(
  entry['simulated']['messages'] == 400 and entry['simulated']['p99_ns']['high'] and
  entry['simulated']['p999_ns']['high'] is None for name, entry in schemes.items() if name[:2] != 'go' and name != 'ideal')"
expect_json "formulas are not simulated" \
  "'simulated' not in schemes['ideal'] and 'simulated' not in schemes['go-back-N']"
first=$output
run taskset -c "$(taskset -cp $$ | sed 's/.*: \([0-9]*\).*/\1/')" "$adverb" plan "${simulated[@]}" 400 --loss 2e-3 --json
expect_text "one processor simulates what several do" "$first"
run "$adverb" plan "${link[@]}" --loss 0.9 --size 1MiB --simulate 10
expect_output "messages that the library gives up have no figures" 0 "given up"

for input in loss size rtt; do
  run "$adverb" plan "${all[@]}" --sweep "$input" --svg "$scratch/$input.svg"
  if [ "$status" = 0 ] && problem=$(python3 - "$scratch/$input.svg" 2>&1 <<'PYTHON'
import sys
import xml.dom.minidom

text = open(sys.argv[1], encoding="utf-8").read()
svg = xml.dom.minidom.parseString(text).documentElement
width, height = (float(svg.getAttribute(name)) for name in ("width", "height"))
lines = svg.getElementsByTagName("polyline")
assert len(lines) == 6, f"{len(lines)} lines"
dashes = {(line.getAttribute("stroke"), line.getAttribute("stroke-dasharray")) for line in lines}
assert len(dashes) == 6, "lines look alike"
for line in lines:
    corners = [tuple(map(float, corner.split(","))) for corner in line.getAttribute("points").split()]
    assert len(corners) >= 10, f"{len(corners)} points"
    assert all(0 <= x <= width and 0 <= y <= height for x, y in corners), corners
    assert corners == sorted(corners), "points run backwards"
words = [node.firstChild.data for node in svg.getElementsByTagName("text")]
for name in ("ideal", "go-back-N", "SR timeout, packet", "SR NACK, packet", "XOR 32,8", "MDS 32,8"):
    assert name in words, f"the legend lacks {name}"
assert any("400 Gbit/s" in word for word in words), "the title lacks the inputs"
assert not svg.getElementsByTagName("script") and "href" not in text and "@import" not in text
PYTHON
  ); then
    pass "the plot over $input is well-formed, complete and within its frame"
  else
    fail "the plot over $input is well-formed, complete and within its frame" \
      "exit status $status: $(tail -n 1 <<<"$errors$problem")"
  fi
done
run "$adverb" plan "${all[@]}" --size 64KiB --sweep loss --simulate 20 --svg "$scratch/simulated.svg"
expect_output "a simulated sweep has a table of its own" 0 \
  "the same of 20 simulated messages each, +- half of the 95 % interval"
if problem=$(python3 - "$scratch/simulated.svg" 2>&1 <<'PYTHON'
import collections
import re
import sys
import xml.dom.minidom

svg = xml.dom.minidom.parse(sys.argv[1]).documentElement
points = len(svg.getElementsByTagName("polyline")[0].getAttribute("points").split())
rings = [node for node in svg.getElementsByTagName("circle") if node.getAttribute("class") == "simulated"]
whiskers = [node for node in svg.getElementsByTagName("path") if node.getAttribute("class") == "whisker"]
assert len(rings) == len(whiskers) == 4 * points, f"{len(rings)} rings, {len(whiskers)} whiskers, {points} points"
for ring, whisker in zip(rings, whiskers):
    low, high = (float(re.search(form, whisker.getAttribute("d")).group(1)) for form in (r"M\S+ ([0-9.]+)h", r"V([0-9.]+)"))
    assert low >= float(ring.getAttribute("cy")) >= high, whisker.getAttribute("d")
    assert ring.getAttribute("stroke") == whisker.getAttribute("stroke")
assert max(collections.Counter(ring.getAttribute("stroke") for ring in rings).values()) == points
assert "mean of 20 simulated messages" in svg.toxml()
PYTHON
); then
  pass "the plot has a ring with a whisker for each simulated mean"
else
  fail "the plot has a ring with a whisker for each simulated mean" "$(tail -n 1 <<<"$problem")"
fi
run "$adverb" plan "${all[@]}" --svg "$scratch/no/such/folder.svg"
expect "a plot that cannot be written: 1" 1 "--svg: cannot write \"$scratch/no/such/folder.svg\": No such file or directory"

# OPTION VALUE REMEDY: a value that is refused, and a part of what is said.
while IFS='|' read -r option value remedy; do
  run "$adverb" plan "${all[@]}" "--$option" "$value"
  expect "--$option $value: 2, with a remedy" 2 "adverb plan: --$option: \"$value\" is not $remedy"
  [ -z "$output" ] || fail "--$option $value prints no plan" "$output"
done <<'VALUES'
rtt|25|a round trip from 1ns to 1000s; write a number with ns, us, ms or s, such as 25ms
rtt|0ms|a round trip
rtt|-1ms|a round trip
rtt|nanms|a round trip
bandwidth|400Gb|a bandwidth from 1 byte a second to 1PB/s; write a number with Kbit, Mbit, Gbit, Tbit, KB, MB, GB or TB, with or without /s, such as 400Gbit
bandwidth|0Gbit|a bandwidth
loss|1|a packet's chance of loss from 0 to 0.9; write it such as 1e-4 or 0.01%
loss|-0.1|a packet's chance of loss
loss|many|a packet's chance of loss
size|128MB|a size from 1B to 1024TiB; write a whole number with B, KiB, MiB, GiB or TiB, such as 128MiB
size|0B|a size
chunk|2GiB|a size from 1B to 1GiB
mtu|1500|an MTU; write 256, 512, 1024, 2048 or 4096
code|mds:32|a code; write mds:K,M or xor:K,M
code|mds:250,8|a code
code|xor:8,9|a code
code|rs:32,8|a code
code|mds:32,8,|a code
simulate|1|a number of messages; write 0, or 2 to 1000000
simulate|-5|a number of messages
simulate|1e3|a number of messages
sweep|mtu|an input to sweep; write loss, size or rtt
VALUES
run "$adverb" plan "${link[@]}" --loss 1e-3 --policy
expect_json "the policy for a link that loses much leaves nothing to the NIC" \
  "out['rules'][0] == {'name': 'far', 'reliability': 'software'} and 'adverb carries 37.57 Gbit/s at most' in out['description']"
cp "$scratch/output" "$scratch/far.json"
run "$adverb" policy check "$scratch/far.json"
expect_output "the policy for a link is a policy" 0 "far.json: ok"
run "$adverb" plan --rtt 100ms --bandwidth 10Gbit --loss 1e-7 --policy
expect_json "the policy for a link that loses next to nothing leaves that to measurement" \
  "out['rules'][0]['reliability'] == 'auto' and out['staging'] == '2GiB'"
run "$adverb" plan --rtt 1ms --bandwidth 1Gbit --loss 1% --policy
expect_json "a short link needs no more than profile far has" "out['staging'] == '64MiB' and out['description'].endswith('of its packets')"
run "$adverb" plan "${link[@]}" --loss 1e-3 --policy --json
expect "a policy is printed alone" 2 "leave out --sweep, --svg, --simulate and --json"
run "$adverb" plan "${link[@]}" --loss 5% --policy
expect_json "the policy for a link that loses much says that the rate falls" "'losses above 2 %' in out['description']"
run "$adverb" plan "${link[@]}" --loss 1e-4
expect "a missing input: 2, with an example" 2 "adverb plan: --size, such as 128MiB, is missing"
run "$adverb" plan "${link[@]}" --size 1MiB --sweep size
expect "a sweep of one input needs the others" 2 "--loss, such as 1e-4, is missing"
run "$adverb" plan "${all[@]}" --chunk 5KiB
expect "chunks of no whole packets: 2" 2 "--chunk: \"5KiB\" is not a multiple of the MTU of 4096 bytes; give another --chunk or --mtu"
run "$adverb" plan "${link[@]}" --loss 0 --size 1024GiB --simulate 2
expect "what is too large to simulate: 2, with a remedy" 2 "a message of 1TiB in packets of 4096 bytes is too much to simulate for SR timeout, chunk; give a smaller --size, a larger --mtu or no --simulate"
run "$adverb" plan "${all[@]}" --lsos=3
expect "an unknown option: 2, with a suggestion" 2 "unknown option \"--lsos\"; did you mean \"--loss\"?"
run "$adverb" plan "${all[@]}" --rtt
expect "an option without its value: 2" 2 "--rtt needs a value"
run "$adverb" plan "${all[@]}" fast
expect "a word too many: 2" 2 "\"fast\" is not an option"
run "$adverb" help plan
expect_output "help names the units of bandwidth" 0 "Kbit, Mbit, Gbit, Tbit, KB, MB, GB or TB"

# The functions of bash-completion are not needed for this command.
offered=$(PATH=$(dirname "$adverb"):$PATH bash -c '
  . "$1"
  COMP_WORDS=(adverb plan --sweep ""); COMP_CWORD=3; _adverb; echo "${COMPREPLY[*]}"
  COMP_WORDS=(adverb plan --s); COMP_CWORD=2; _adverb; echo "${COMPREPLY[*]}"
  COMP_WORDS=(adverb pl); COMP_CWORD=1; _adverb; echo "${COMPREPLY[*]}"' sh "$ADVERB_REPO/preload/tools/adverb.bash")
if [ "$offered" = "loss size rtt
--simulate --size --svg --sweep
plan" ]; then
  pass "completion offers the command, its options and their words"
else
  fail "completion offers the command, its options and their words" "$offered"
fi
