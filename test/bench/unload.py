# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What requests on unpinned memory cost that the peer's CPU carries out: counts for each, and time on the
loopback device beside stock. A core has to be free for each of four threads, else they are late."""

import glob
import json
import os
import re
import statistics
import subprocess
import tempfile

from native import Native, paired

COUNT = 4000             # requests of a run that is counted; another has three times as many
LATENCY_COUNT = 20000    # of a run that is timed: a tenth of a second without spinning is a part of it only
LARGE_COUNT = 400        # in fewer, the time until threads have found their processors is a part of it
LARGE = 1 << 20          # bytes
# (title, operation, bytes, outstanding, stock's operation, requests of a run, bar of the ratio, link.spin in us)
TIMES = [
    ("READ of 8 B, beside a message and its answer", "read", 8, 1, "message", LATENCY_COUNT, 1.5, 50),
    ("WRITE of 8 B, beside a message and its answer", "write", 8, 1, "message", LATENCY_COUNT, 1.5, 50),
    ("READ of 8 B without spinning", "read", 8, 1, "message", LATENCY_COUNT, None, 0),
    ("WRITE of 8 B without spinning", "write", 8, 1, "message", LATENCY_COUNT, None, 0),
    ("READ of 1 MiB", "read", LARGE, 1, "read", LARGE_COUNT, 3.5, 50),
    ("READ of 1 MiB, 8 outstanding", "read", LARGE, 8, "read", LARGE_COUNT, 1 / 0.35, 50),
    ("WRITE of 1 MiB, 8 outstanding", "write", LARGE, 8, "write", LARGE_COUNT, 1 / 0.35, 50),
    ("READ of 8 B, 16 outstanding", "read", 8, 16, "read", 10 * COUNT, 1 / 0.4, 50),
    ("WRITE of 8 B, 16 outstanding", "write", 8, 16, "write", 10 * COUNT, 1 / 0.4, 50),
]
COUNTS = {"link_messages": ("messages", 2), "link_completions": ("completions of messages", 2.5)}
# Of requests that are posted by lists of so many: a message and its answer for a list, and a little.
LIST = 16
LIST_COUNTS = {"link_messages": ("messages", 2.1 / LIST), "link_completions": ("completions of messages", 2.6 / LIST)}
SYSCALLS = 0.01
# The loopback device moves the bytes of each message by one of these (process_vm_readv, process_vm_writev),
# where a device would by itself. They are not counted.
OF_DEVICE = "id != 310 && id != 311"
SYSCALL_RUNS = 5         # pairs, of whose differences the median counts: any disturbance adds some


def policy(scratch, spin):
    path = os.path.join(scratch, f"spin{spin}.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"version": 1, "link": {"spin": spin}, "rules": [{"register": "none"}]}, file)
    return path


def counted(native, scratch, words):
    """{counter: of both processes}"""
    native.run(True, *words, ADVERB_STATS_FILE=os.path.join(scratch, "stats.%p"), ADVERB_POLICY=policy(scratch, 50))
    totals = {}
    for path in glob.glob(os.path.join(scratch, "stats.*")):
        with open(path, encoding="utf-8") as file:
            for name, value in json.load(file)["counters"].items():
                totals[name] = totals.get(name, 0) + value
        os.unlink(path)
    return totals


def syscalls(native, words, spin):
    """Of both processes and the few that start them, beyond the device's; None where perf may not count them."""
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "perf")
        try:
            native.run(True, *words, before=("perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter",
                                               "--filter", OF_DEVICE, "-o", out),
                       ADVERB_POLICY=policy(scratch, spin))
        except (OSError, subprocess.CalledProcessError):
            return None
        with open(out, encoding="utf-8") as file:
            total = re.search(r"^(\d+),", file.read(), re.M)
    return int(total.group(1)) if total else None


def syscalls_each(native, words, more, spin):
    """Of one request: what is done once falls out of the difference of two runs."""
    differences = []
    for _ in range(SYSCALL_RUNS):
        a, b = (syscalls(native, (*words, n, *more), spin) for n in (COUNT, 3 * COUNT))
        if a is None or b is None:
            return None
        differences.append((b - a) / (2.5 * COUNT))
    return max(round(statistics.median(differences), 3), 0)


def count_rows(native, scratch):
    for operation in ("read", "write"):
        def runs(count, operation=operation):
            return operation, 8, 1, count, "polls"
        less, more = (counted(native, scratch, runs(n)) for n in (COUNT, 3 * COUNT))
        # A quarter more goes before, to warm up; what is made once falls out of the difference.
        for counter, (title, bar) in COUNTS.items():
            yield {"name": f"{operation}_{counter}", "title": f"{operation.upper()} of 8 B: {title}",
                   "value": round((more[counter] - less[counter]) / (2.5 * COUNT), 3), "bar": bar}
        lists = [counted(native, scratch, (operation, 8, LIST, n, "lists")) for n in (COUNT, 3 * COUNT)]
        for counter, (title, bar) in LIST_COUNTS.items():
            yield {"name": f"{operation}_lists_{counter}", "title": f"{operation.upper()} of 8 B, {LIST} a list: {title}",
                   "value": round((lists[1][counter] - lists[0][counter]) / (2.5 * COUNT), 3), "bar": round(bar, 3)}
        # The ends that poll are the initiator's program and the owner's copier. With the owner's program there
        # are three, each of which wants a processor.
        for polls, spin in (((), 50), ((), 0), (("polls",), 50)):
            value = syscalls_each(native, (operation, 8, 1), polls, spin)
            if value is not None:
                row = {"name": f"{operation}_syscalls_spin{spin}{'_polls' if polls else ''}", "value": value,
                       "title": f"{operation.upper()} of 8 B: system calls, "
                                + (f"spinning for {spin} us" if not polls else "while the owner's program polls, too")}
                yield row | ({"bar": SYSCALLS} if spin != 0 and not polls else {})
    # The loopback device's own thread wakes now and then, too.
    stock, adverb = (min(native.run(adverb, "idle", 2, ADVERB_POLICY=policy(scratch, 50))[0] for _ in range(4))
                     for adverb in (False, True))
    yield {"name": "idle", "title": "two idle processes that are linked: wake-ups a second, beyond stock's",
           "value": max(round(adverb - stock, 2), 0), "bar": 0}


def time_rows(native, scratch):
    for title, operation, size, outstanding, beside, count, bar, spin in TIMES:
        at = 0 if outstanding == 1 else 1  # the median of latencies, or the mean of all
        sleeps = []

        def adverb(words=(operation, size, outstanding, count), spin=spin, at=at, sleeps=sleeps):
            figures = native.run(True, *words, ADVERB_POLICY=policy(scratch, spin))
            sleeps.append(figures[3])
            return figures[at]

        row = paired(lambda b=beside, s=size, o=outstanding, c=count, at=at: native.run(False, b, s, o, c)[at],
                     adverb, bar)
        yield {"name": f"{operation}_{size}x{outstanding}_spin{spin}", "title": title,
               "sleeps": round(sorted(sleeps)[len(sleeps) // 2], 3), **row}


def run(build):
    native = Native(build, "bench_unload")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            return [*count_rows(native, scratch), *time_rows(native, scratch)]
    finally:
        native.close()


def show(rows):
    print("Requests on unpinned memory, carried out by the peer's CPU")
    print(f"{'of one request':62}{'adverb':>9}{'bar':>7}")
    for r in (r for r in rows if "stock" not in r):
        print(f"{r['title']:62}{r['value']:9.3f}{r.get('bar', '-'):>7}")
    print(f"{'microseconds per request, loopback device':46}{'stock':>9}{'adverb':>9}{'ratio':>7}{'95% of it':>15}{'sleeps':>8}{'bar':>7}")
    for r in (r for r in rows if "stock" in r):
        judged = f"{r['bar']:7.2f} {r['verdict']}" if "bar" in r else "      -"
        print(f"{r['title']:46}{r['stock'] / 1000:9.2f}{r['adverb'] / 1000:9.2f}{r['ratio']:7.2f}"
              f"{r['low']:8.2f} ..{r['high']:5.2f}{r['sleeps']:8.2f}{judged}")
