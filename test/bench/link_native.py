# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What links cost in time, calls and wake-ups on the loopback device, and what one peer can make of it for another.
The parts are in links/."""

import json
import os
import subprocess
import sys

from native import Native

PARTS = ("first", "hellos", "growth", "idle", "bounds")
LONGEST = 400  # s


def run(build):
    native = Native(build, "bench_link")
    command = [*native.network, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", "env",
               *(f"{name}={value}" for name, value in native.environment.items()), sys.executable,
               os.path.join(os.path.dirname(os.path.realpath(__file__)), "links", "inside.py"), build, *PARTS]
    try:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=LONGEST)
    finally:
        native.close()
    return [json.loads(line) for line in done.stdout.splitlines()]


def show(rows):
    """Beside its value what that compares: stock and adverb, or few and many"""
    print(f"{'links on the loopback device':66}{'stock, few':>12}{'adverb, many':>14}{'value':>10}{'bar':>7}")
    for row in rows:
        less = row.get("stock", row.get("few", ""))
        more = row.get("adverb", row.get("many", ""))
        words = [row["unit"], row.get("verdict"), "worst" in row and f"at worst {row['worst']}"]
        print(f"{row['name']:66}{less:>12}{more:>14}{row['value']:>10}{row.get('bar', '-'):>7} "
              + " ".join(filter(None, words)))
