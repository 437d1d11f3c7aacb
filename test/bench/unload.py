# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What requests on unpinned memory cost that the peer's CPU carries out: counts for each, and time on the
loopback device beside stock. A core has to be free for each of four threads, else they are late."""

import json
import os
import re
import statistics
import subprocess
import tempfile

import native
from bars import attempt, failure

TARGETS = [*native.TARGETS, "test/bench/bench_unload"]
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
TABLES = {
    "counts": f"Requests on unpinned memory, carried out by the peer's CPU\n{'of one request':72}{'adverb':>9}",
    "time": native.ratio_heading("microseconds per request, loopback device")
            + f"{'(CPU:':>10}{'adverb)':>10}{'sleeps':>8}",
}


def policy(scratch, spin):
    path = os.path.join(scratch, f"spin{spin}.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"version": 1, "link": {"spin": spin}, "rules": [{"register": "none"}]}, file)
    return path


def syscalls(programs, words, spin):
    """Of both processes and the few that start them, beyond the device's"""
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "perf")
        programs.run(True, *words, before=("perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter",
                                           "--filter", OF_DEVICE, "-o", out),
                     ADVERB_POLICY=policy(scratch, spin))
        with open(out, encoding="utf-8") as file:
            total = re.search(r"^(\d+),", file.read(), re.M)
    if not total:
        raise RuntimeError("perf counts no system calls here")
    return int(total.group(1))


def syscalls_each(programs, words, more, spin):
    """Of one request: what is done once falls out of the difference of two runs."""
    differences = []
    for _ in range(SYSCALL_RUNS):
        a, b = (syscalls(programs, (*words, n, *more), spin) for n in (COUNT, 3 * COUNT))
        differences.append((b - a) / (2.5 * COUNT))
    return {"value": max(round(statistics.median(differences), 3), 0)}


def counter_rows(programs, path, words, more, counters, name, title):
    """A quarter more goes before, to warm up; what is made once falls out of the difference."""
    figures, failed = [], {}
    try:
        figures = [programs.counters(*words, n, more, ADVERB_POLICY=path) for n in (COUNT, 3 * COUNT)]
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        failed = failure(error)
    for counter, (what, bar) in counters.items():
        row = {"name": f"{name}_{counter}", "table": "counts", "title": f"{title}: {what}", "at_most": round(bar, 3)}
        yield row | failed if failed else attempt(lambda counter=counter: {
            "value": round((figures[1][counter] - figures[0][counter]) / (2.5 * COUNT), 3)}, **row)


def count_rows(programs, scratch, options):
    path = policy(scratch, 50)
    for operation in ("read", "write"):
        title = f"{operation.upper()} of 8 B"
        yield from counter_rows(programs, path, (operation, 8, 1), "polls", COUNTS, operation, title)
        yield from counter_rows(programs, path, (operation, 8, LIST), "lists", LIST_COUNTS, f"{operation}_lists",
                                f"{title}, {LIST} a list")
        # The ends that poll are the initiator's program and the owner's copier. With the owner's program there
        # are three, each of which wants a processor. On a busy machine all sleep: these are no counts for --quick.
        for polls, spin in () if options.quick else (((), 50), ((), 0), (("polls",), 50)):
            yield attempt(lambda operation=operation, polls=polls, spin=spin:
                          syscalls_each(programs, (operation, 8, 1), polls, spin),
                          name=f"{operation}_syscalls_spin{spin}{'_polls' if polls else ''}", table="counts",
                          title=f"{title}: system calls, " + (f"spinning for {spin} us" if not polls else
                                                              "while the owner's program polls, too"),
                          **({"at_most": SYSCALLS} if spin != 0 and not polls else {}))

    def idle():
        # The loopback device's own thread wakes now and then, too.
        stock, adverb = (min(programs.run(adverb, "idle", 2, ADVERB_POLICY=path)[0] for _ in range(4))
                         for adverb in (False, True))
        return {"value": max(round(adverb - stock, 2), 0)}
    yield attempt(idle, name="idle", table="counts", at_most=0,
                  title="two idle processes that are linked: wake-ups a second, beyond stock's")


def time_rows(programs, scratch):
    for title, operation, size, outstanding, beside, count, bar, spin in TIMES:
        at = 0 if outstanding == 1 else 1  # the median of latencies, or the mean of all
        words = size, outstanding, count

        def times(operation=operation, beside=beside, words=words, at=at, spin=spin):
            sleeps, cpu = [], {False: [], True: []}

            def time(adverb):
                figures = programs.run(adverb, operation if adverb else beside, *words,
                                       ADVERB_POLICY=policy(scratch, spin))
                cpu[adverb].append(figures[2])
                if adverb:
                    sleeps.append(figures[3])
                return figures[at]
            row = native.paired(lambda: time(False), lambda: time(True))
            return row | {"sleeps": round(statistics.median(sleeps), 3), "stock_cpu": statistics.median(cpu[False]),
                          "adverb_cpu": statistics.median(cpu[True])}
        yield attempt(times, name=f"{operation}_{size}x{outstanding}_spin{spin}", table="time", title=title,
                      **({} if bar is None else {"at_most": round(bar, 3)}))


def run(build, options):
    programs = native.Native(build, "bench_unload")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            yield from count_rows(programs, scratch, options)
            if not options.quick:
                yield from time_rows(programs, scratch)
    finally:
        programs.close()


def line(row):
    if row["table"] == "counts":
        return f"{row['title']:72}{row['value']:9.3f}"
    return (native.ratio_line(row) + f"{row['stock_cpu'] / 1000:10.2f}{row['adverb_cpu'] / 1000:10.2f}"
            f"{row['sleeps']:8.2f}")
