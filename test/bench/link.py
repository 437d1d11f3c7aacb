# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a first request on unpinned memory costs in round trips, between two virtual hosts far apart.

What the hosts compute meanwhile takes long under emulation, but as long over any way: so the trips are those
milliseconds by which the longer of two ways takes longer, divided by the difference of the ways. A program is run
anew for each first queue pair of a path."""

import os
import statistics
import subprocess

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
DELAYS = (40, 240)  # ms of each direction
VM = ["--hosts", "2", "--netem", "delay 1ms", "--timeout", "900"]
RUNS = 5            # programs of each kind, one after the other
QUEUE_PAIRS = 4     # of a program
PORT = 19700
# Host 1 asks.
IN_GUEST = f"""
set -e
bench=$ADVERB_BUILD/test/bench/bench_link
port={PORT}
for delay in {' '.join(map(str, DELAYS))}; do
  tc qdisc replace dev eth0 root netem limit 100000 delay "${{delay}}ms"
  for run in $(seq {RUNS}); do
    for wrap in "" "adverb run --profile unpinned --"; do
      if [ "$VM_HOST" = 0 ]; then
        $wrap "$bench" serve "$port" &
        until ss -Hltn "sport = :$port" | grep -q .; do kill -0 $!; sleep 0.05; done
        vm-barrier "listens.$port"
        wait $!
      else
        vm-barrier "listens.$port"
        $wrap "$bench" ask "$VM_IP_0" "$port" {QUEUE_PAIRS} | sed "s/^/$delay ${{wrap:+adverb}} /"
      fi
      port=$((port + 1))
    done
  done
done
"""
# A connection, a hello with all that can be asked for at once, the companion's nonces, the proof, and the request
# itself; a queue pair on a path that is known needs neither connection nor companion. It takes no less there: a
# request must not leave before the peer has proven to be the one.
BARS = {"the first path to a host": 5.2, "a known path": 3.2, "a second request": 1.2}


def measure(build):
    """{(delay, whose): [[(first, second) of each queue pair] of each program]}, in milliseconds"""
    done = subprocess.run([os.path.join(REPO, "scripts", "vm"), *VM, "--", IN_GUEST], check=False,
                          env={**os.environ, "ADVERB_BUILD": build}, stdout=subprocess.PIPE, text=True)
    programs = {}
    for line in done.stdout.splitlines():
        words = line.removeprefix("[1] ").split()
        if len(words) < 4 or not words[0].isdigit() or not words[-3].isdigit():
            continue
        mine = programs.setdefault((int(words[0]), "adverb" if words[1] == "adverb" else "stock"), [])
        if words[-3] == "0":
            mine.append([])
        mine[-1].append((float(words[-2]), float(words[-1])))
    if done.returncode != 0 or len(programs) != 2 * len(DELAYS) or any(
            len(runs) != RUNS or any(len(run) != QUEUE_PAIRS for run in runs) for runs in programs.values()):
        raise RuntimeError("the guests measured nothing:\n" + done.stdout)
    return programs


def medians(runs):
    return {"the first path to a host": statistics.median(run[0][0] for run in runs),
            "a known path": statistics.median(first for run in runs for first, _ in run[1:]),
            "a second request": statistics.median(second for run in runs for _, second in run)}


def run(build):
    programs = measure(build)
    times = {key: medians(runs) for key, runs in programs.items()}
    short, long = DELAYS
    rows = []
    for name, bar in BARS.items():
        trips = {whose: (times[long, whose][name] - times[short, whose][name]) / (2 * (long - short))
                 for whose in ("stock", "adverb")}
        rows.append({"name": name, "value": round(trips["adverb"], 2), "stock": round(trips["stock"], 2), "bar": bar,
                     "milliseconds": times[short, "adverb"][name]})
    return rows


def show(rows):
    print(f"from RTS to a READ's completion, in round trips{'stock':>13}{'adverb':>10}{'bar':>8}")
    for row in rows:
        print(f"{row['name']:<47}{row['stock']:>13.2f}{row['value']:>10.2f}{row['bar']:>8}")
