# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Software reliability: completion times of simulated messages by scheme, beside the model, and what a packet costs.

A message of 128 MiB goes over 400 Gbit/s with a round trip of 25 ms, in chunks of 64 KiB of 16 packets. The library's
own sender and receiver run under a virtual clock, and seeds are fixed: the times are counts. SR RTO chunk=packet is
the rival as SDR-RDMA's model has it (arXiv 2505.05366): after a timeout of three round trips the chunk goes again, and
a chunk that loses one packet is lost whole. It is simulated with the chunk as the packet, lost with the chunk's
chance."""

import itertools
import os
import subprocess
import tempfile

import callgrind
import native
import svg
from bars import attempt, failure

TARGETS = [*native.TARGETS, "test/bench/bench_sdr", "test/bench/bench_sdr_simulate"]
TABLES = {
    "simulation": f"{'milliseconds, simulated':44}{'messages':>9}{'mean':>10}{'95% of it':>17}{'p99':>9}{'p99.9':>9}"
                  f"{'95% of it':>17}{'model':>10}{'sent':>8}",
    "ratio": f"{'ratios of simulated times':72}{'value':>9}{'95% of it':>17}",
    "count": f"{'instructions of a packet, without the device':72}{'ours':>9}{'copying':>9}",
    "functions": f"{'the most of them':72}{'ours':>9}",
    "time": native.ratio_heading("nanoseconds per KiB, loopback device, one thread", "raw"),
}
# (packet loss, messages of a scheme without parity, with parity)
POINTS = [("1e-5", 10000, 1000), ("1e-4", 6000, 1000), ("1e-3", 6000, 1000), ("2e-3", 20000, 20000),
          ("4e-3", 20000, 20000), ("1e-2", 6000, 2000)]
QUICK = 20               # of them one message
RIVAL, FEW, MANY = "SR RTO chunk=packet", "EC(32,8) MDS", "EC(32,12) MDS"
# By packets the model is exact but for lost reports and the time between two. By chunks it sends all packets of a chunk
# again until one time none is lost, where ours keeps those that arrived. A code that falls back waits a round trip too
# long in the model, and less for reports.
EXACT = (RIVAL, "SR RTO packet", "SR NACK packet", FEW, MANY)
MODEL_WITHIN = 0.02
AUTO_WITHIN = 1.05
MEAN_BAR = ("2e-3", FEW, 5)
TAIL_BAR = ("4e-3", MANY, 12)
INSTRUCTIONS = 400       # of a packet, at both ends together
COUNTED = 32             # messages of 1 MiB under callgrind
MESSAGES = 300           # of 1 MiB in a run that is timed
RATE = 10 ** 12          # bytes a second: no pace
GOODPUT = 1 / 0.85       # of raw, as a ratio of times
SHOWN = 8                # functions
LONGEST = 600            # s: whoever takes longer hangs


def number(word):
    return None if word == "-" else float(word)


def simulated(build, loss, plain, coded):
    """A row of each scheme, as it is measured"""
    command = [os.path.join(build, "test/bench/bench_sdr_simulate"), loss, str(plain), str(coded)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for text in process.stdout:
            name, messages, *figures, of_auto = text.rstrip("\n").split("|")
            mean, low, high, p99, low99, high99, p999, low999, high999, model, _, _, sent = map(number, figures)
            yield {"name": f"{name}, loss {loss}", "title": title(name, loss, of_auto), "table": "simulation",
                   "loss": loss, "scheme": name, "messages": int(messages), "value": mean, "mean_low": low,
                   "mean_high": high, "p99": p99, "p99_low": low99, "p99_high": high99, "p999": p999,
                   "p999_low": low999, "p999_high": high999, "model": model, "sent": sent}
    if process.returncode != 0:
        raise RuntimeError(f"bench_sdr_simulate ended with status {process.returncode}")


def title(name, loss, of_auto):
    return f"loss {loss}  {name}" + (f": {of_auto}" if of_auto else "")


def ratio(name, over, under, figure, **bar):
    """A ratio of one scheme's figure by another's, and what the intervals of both leave of it"""
    low, high = (f"{'mean' if figure == 'value' else figure}_{end}" for end in ("low", "high"))
    row = {"name": name, "table": "ratio", "value": round(over[figure] / under[figure], 4), **bar}
    if over[low] is not None and under[high]:
        row["least"] = round(over[low] / under[high], 4)
    if over[high] and under[low]:
        row["most"] = round(over[high] / under[low], 4)
    return row


def ratios(rows, loss):
    """The bars of one loss"""
    of = {row["scheme"]: row for row in rows}
    bar = {"at_least": MEAN_BAR[2]} if loss == MEAN_BAR[0] else {}
    yield ratio(f"loss {loss}: mean of {RIVAL} by that of {FEW}", of[RIVAL], of[FEW], "value", **bar)
    bar = {"at_least": TAIL_BAR[2]} if loss == TAIL_BAR[0] else {}
    yield ratio(f"loss {loss}: p99.9 of {RIVAL} by that of {MANY}", of[RIVAL], of[MANY], "p999", **bar)
    best = min((row for row in rows if row["messages"] and row["scheme"] != "auto"), key=lambda row: row["value"])
    yield ratio(f"loss {loss}: mean of auto by the best other's ({best['scheme']})", of["auto"], best, "value",
                at_most=AUTO_WITHIN)
    for row in rows:
        if not row["messages"]:
            continue
        exact = row["scheme"] in EXACT
        bar = {"at_least": 1 - MODEL_WITHIN, "at_most": 1 + MODEL_WITHIN} if exact else {}
        model = {"value": row["model"], "mean_low": row["model"], "mean_high": row["model"]}
        yield ratio(f"loss {loss}: {row['scheme']}, simulation by model" + ("" if exact else " (not exact)"),
                    row, model, "value", **bar)


def simulation(build, options):
    for loss, plain, coded in POINTS:
        rows = []
        share = QUICK if options.quick else 1
        for row in simulated(build, loss, plain // share, coded // share):
            rows.append(row)
            yield row
        yield from ratios(rows, loss)


def counted(build, end, code):
    """({function: instructions of a packet at one end}, packets)"""
    program = os.path.join(build, "test/bench/bench_sdr")
    fabric = f"adverb-bench.{os.getpid()}"
    environment = {**os.environ, "ADVERB_LOOPBACK_FABRIC": fabric, "ADVERB_POLICY": "default",
                   "LD_LIBRARY_PATH": ":".join(os.path.join(build, part) for part in ("test/loopback", "preload"))}
    with tempfile.TemporaryDirectory() as scratch:
        dump = os.path.join(scratch, "out")
        try:
            done = subprocess.run(
                ["valgrind", "--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={dump}", program, "count",
                 end, str(COUNTED), code], env=environment, capture_output=True, text=True, timeout=LONGEST, check=True)
        finally:
            if os.path.exists(f"/dev/shm/{fabric}"):
                os.unlink(f"/dev/shm/{fabric}")
        packets = sum(map(int, done.stdout.split()))
        with open(dump, encoding="utf-8") as file:
            functions = callgrind.by_function(file, "libadverb.so", "libibverbs.so")
    return {name: instructions / packets for name, instructions in functions.items()}


def copying(functions):
    return sum(count for name, count in functions.items() if "memcpy" in name or "memmove" in name)


def instructions(build, code):
    """Rows of each end and both. A copy of a packet is one instruction, or hundreds, as the processor has it: copies
    have a column of their own."""
    ends = {}
    for end, what in (("left", "the sender"), ("right", "the receiver")):
        try:
            ends[what] = counted(build, end, code)
        except Exception as error:  # the bench goes on
            yield {"name": f"{what}, {code}", "table": "count", **failure(error)}
            return
    words = "with parity of MDS 32,8" if code == "mds" else "without parity"
    for what, functions in ends.items():
        copies = copying(functions)
        yield {"name": f"{what}, {words}", "table": "count", "copying": round(copies),
               "value": round(sum(functions.values()) - copies)}
    copies = sum(map(copying, ends.values()))
    yield {"name": f"both ends, {words}", "table": "count", "copying": round(copies),
           "value": round(sum(sum(functions.values()) for functions in ends.values()) - copies),
           **({"at_most": INSTRUCTIONS} if code == "none" else {})}
    if code == "none":
        most = sorted(((count, what, name) for what, functions in ends.items() for name, count in functions.items()),
                      reverse=True)
        for count, what, name in itertools.islice(most, SHOWN):
            yield {"name": f"{what}: {name.partition('(')[0][:50]}", "table": "functions", "value": round(count)}


def goodput(build, options):
    programs = native.Native(build, "bench_sdr")
    try:
        for rate, words, bar in ((RATE, "at a rate beyond the device's", {"at_most": GOODPUT}),
                                 (0, "at a rate that the library finds", {})):
            yield attempt(lambda rate=rate: native.paired(lambda: programs.run(False, "raw", MESSAGES)[0],
                                                          lambda: programs.run(True, "send", MESSAGES, rate)[0]),
                          name=f"goodput {words}", title=f"messages of 1 MiB {words}", table="time", **bar)
    finally:
        programs.close()


def run(build, options):
    for code in ("none", "mds"):
        yield from instructions(build, code)
    if not options.quick:
        yield from goodput(build, options)
    yield from simulation(build, options)


def span(low, high):
    return f"{'-' if low is None else f'{low:.2f}'} .. {'-' if high is None else f'{high:.2f}'}"


def cell(value, width, form=".2f"):
    return f"{'-' if value is None else format(value, form):>{width}}"


def line(row):
    if row["table"] == "simulation":
        return (f"{row['title']:44}{row['messages'] or 'model':>9}{cell(row['value'], 10)}"
                f"{span(row['mean_low'], row['mean_high']):>17}{cell(row['p99'], 9)}{cell(row['p999'], 9)}"
                f"{span(row['p999_low'], row['p999_high']):>17}{cell(row['model'], 10)}{cell(row['sent'], 8, '.3f')}")
    if row["table"] == "ratio":
        return f"{row['name']:72}{row['value']:>9.3f}{span(row.get('least'), row.get('most')):>17}"
    if row["table"] == "count":
        return f"{row['name']:72}{row['value']:>9}{row['copying']:>9}"
    if row["table"] == "functions":
        return f"{row['name']:72}{row['value']:>9}"
    return native.ratio_line(row, 1)


def draw(rows):
    rows = [row for row in rows if row["table"] == "simulation"]
    losses = list(dict.fromkeys(row["loss"] for row in rows))
    names = list(dict.fromkeys(row["scheme"] for row in rows))

    def chart(words, figure):
        values = {(row["scheme"], row["loss"]): row[figure] for row in rows}
        return {"title": words, "x": losses,
                "lines": {name: [values.get((name, loss)) for loss in losses] for name in names}}

    return svg.page("128 MiB over 400 Gbit/s and 25 ms, by packet loss",
                    [chart("ms, mean", "value"), chart("ms, p99", "p99"), chart("ms, p99.9", "p999")], columns=3)
