# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What links cost in time, calls and wake-ups on the loopback device, and what one peer can make of it for another.
The parts are in links/."""

import json
import os
import subprocess
import sys

from native import TARGETS as NATIVE_TARGETS
from native import Native

TARGETS = [*NATIVE_TARGETS, "test/bench/bench_link", "test/liar/victim"]
# The others take times, or count what links do again if a busy machine lets their time pass.
PARTS, COUNTED = ("hellos", "idle", "first", "growth", "bounds"), ("hellos", "idle")
HERE = os.path.dirname(os.path.realpath(__file__))
# Beside its value what that compares: stock and adverb, or few and many
TABLES = {"links": f"{'links on the loopback device':66}{'stock, few':>12}{'adverb, many':>14}{'value':>10}"}


def run(build, options):
    native = Native(build, "bench_link")
    extent = ["--quick"] if options.quick else ["--long"] if options.long else []
    command = [*native.network, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", "env",
               *(f"{name}={value}" for name, value in native.environment.items()), sys.executable,
               os.path.join(HERE, "links", "inside.py"), build, *extent, *(COUNTED if options.quick else PARTS)]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as inside:
            yield from map(json.loads, inside.stdout)
        if inside.returncode != 0:
            raise RuntimeError(f"inside.py ended with status {inside.returncode}")
    finally:
        native.close()


def line(row):
    less = row.get("stock", row.get("few", ""))
    more = row.get("adverb", row.get("many", ""))
    span = f" ({row['low']} .. {row['high']})" if "low" in row else ""
    worst = f", at worst {row['worst']}" if "worst" in row else ""
    return f"{row['name']:66}{less:>12}{more:>14}{row['value']:>10} {row['unit']}{span}{worst}"
