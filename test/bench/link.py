# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a first request on unpinned memory costs in round trips, between two virtual hosts far apart.

What the hosts compute meanwhile takes long under emulation, but as long over any way: so the trips are those
milliseconds by which the longer of two ways takes longer, divided by the difference of the ways. A program is run
anew for each first queue pair of a path."""

import statistics

import guest
from bars import attempt

TARGETS = [*guest.TARGETS, "test/bench/bench_link"]
WITHOUT_COUNTS = "each row is a time between two virtual hosts"
TABLES = {
    "programs": f"{'milliseconds from RTS to a completion of a READ':<48}{'first':>10}{'known':>10}{'second':>10}",
    "trips": f"{'the same in round trips':<48}{'stock':>10}{'adverb':>10}",
}
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
        $wrap "$bench" ask "$VM_IP_0" "$port" {QUEUE_PAIRS} | sed -u "s/^/$delay ${{wrap:+adverb}} /"
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


def measured(build):
    """(delay, whose, [(first, second) of each queue pair]) of each program, in milliseconds, as it ends"""
    pairs = []
    for line in guest.lines(build, *VM, "--", IN_GUEST):
        words = line.removeprefix("[1] ").split()
        if len(words) < 4 or not words[0].isdigit() or not words[-3].isdigit():
            continue
        pairs.append((float(words[-2]), float(words[-1])))
        if len(pairs) == QUEUE_PAIRS:
            yield int(words[0]), "adverb" if words[1] == "adverb" else "stock", pairs
            pairs = []


def medians(runs):
    return {"the first path to a host": statistics.median(run[0][0] for run in runs),
            "a known path": statistics.median(first for run in runs for first, _ in run[1:]),
            "a second request": statistics.median(second for run in runs for _, second in run)}


def trips(programs, name):
    """What takes longer over the longer way, in its round trips"""
    if any(len(programs.get((delay, whose), ())) != RUNS for delay in DELAYS for whose in ("stock", "adverb")):
        raise RuntimeError("not all programs have ended well")
    short, long = DELAYS
    of = {whose: (medians(programs[long, whose])[name] - medians(programs[short, whose])[name]) / (2 * (long - short))
          for whose in ("stock", "adverb")}
    return {"stock": round(of["stock"], 2), "value": round(of["adverb"], 2)}


def run(build, options):
    programs = {}
    for delay, whose, pairs in measured(build):
        mine = programs.setdefault((delay, whose), [])
        mine.append(pairs)
        first, known, second = medians([pairs]).values()
        yield {"name": f"{whose}, {delay} ms each way, run {len(mine)}", "table": "programs", "value": first,
               "known": known, "second": second}
    for name, bar in BARS.items():
        yield attempt(lambda name=name: trips(programs, name), name=name, table="trips", at_most=bar)


def line(row):
    figures = ("value", "known", "second") if row["table"] == "programs" else ("stock", "value")
    return f"{row['name']:<48}" + "".join(f"{row[figure]:>10.2f}" for figure in figures)
