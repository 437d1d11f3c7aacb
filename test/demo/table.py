#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Makes the demo's table of what its guest left in a directory, and gives the verdict.

usage: table.py [--json] [--np] DIRECTORY [CASE]...      exit status 0 only if every run completed, the runs under
adverb were really intercepted and went the way they are shown for, data was verified, and adverb pinned
less where stock pins much."""

import json
import math
import os
import re
import sys

# case: (title, what its number is, whether the program itself verifies data)
CASES = {
    "write_bw": ("ib_write_bw, 8 MiB messages", "bandwidth", False),
    "read_bw": ("ib_read_bw, 8 MiB messages", "bandwidth", False),
    "send_bw": ("ib_send_bw, 8 MiB messages", "bandwidth", False),
    "atomic_bw": ("ib_atomic_bw", "bandwidth", False),
    "write_lat": ("ib_write_lat", "latency", False),
    "read_lat": ("ib_read_lat", "latency", False),
    "send_lat": ("ib_send_lat", "latency", False),
    "pingpong": ("ibv_rc_pingpong -c", "pingpong", True),
    "rping": ("rping -V", "", True),
    "sparse": ("512 MiB buffer, 64 pages in use", "sparse", True),
}
# wrap: what it is called
WRAPS = {"stock": "stock", "hot": "unpinned, hot", "cold": "unpinned, cold", "np": "unpinned, np"}
UNPINNED = ("hot", "cold", "np")
# What is small enough to be leased whole, and used often enough: most of it goes by the NIC.
LEASED = ("write_lat", "read_lat", "sparse")
# Programs that only READ, of which most go by views of adverb.ko's: what is WRITTEN as well is leased.
VIEWED = ("read_bw", "read_lat")
ROLES = ("server", "client")
UNPINNED_MIB = 8  # what may be pinned under adverb; receives posted by SEND programs are apart
LINK_MIB = 3  # what the links of a program pin besides


def read(*path):
    try:
        with open(os.path.join(*path), encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def measured(kind, output):
    """MiB/s of a bandwidth program, µs of a latency program."""
    lines = [line.split() for line in output.splitlines() if re.match(r"^ *\d+ +\d+ +[\d.]+ ", line)]
    if kind == "bandwidth" and lines:
        return {"bandwidth": float(lines[-1][3])}
    if kind == "latency" and lines:
        return {"latency": float(lines[-1][4])}
    if kind in ("pingpong", "sparse"):
        found = re.search(r"([\d.]+) usec/(iter|request)", output)
        return {"latency": float(found.group(1))} if found else {}
    return {}


def registration_ms(trace, pid):
    """Milliseconds process `pid` spent in outermost calls that register memory; None if untraced."""
    total, depth, entered, seen = 0.0, 0, 0.0, False
    for line in trace.splitlines():
        found = re.match(rf"^.*-{pid} +\[\d+\] \S+ +([\d.]+): reg_(in|out)\d+:", line)
        if not found:
            continue
        seen = True
        time = float(found.group(1))
        if found.group(2) == "in":
            entered = time if depth == 0 else entered
            depth += 1
        elif depth:
            depth -= 1
            total += (time - entered) * 1e3 if depth == 0 else 0
    return total if seen else None


def ways(counters):
    """How many requests of both ends went each way, and the percentage that the NIC carried."""
    posts = {way: sum(c.get("counters", {}).get(f"posts_{way}", 0) for c in counters)
             for way in ("leased", "grant", "np_read", "offload", "unload")}
    every = sum(posts.values())
    return {"posts": posts, "by_nic_percent": 100 * (every - posts["unload"]) / every if every else None}


def row_of(folder, case, wrap):
    """Everything known of one run: both ends' maxima, the client's figures."""
    title, kind, verifies = CASES[case]
    base = os.path.join(folder, wrap, case)
    row = {"program": title, "case": case, "wrap": wrap, "VmPin_MiB": None, "VmRSS_MiB": None,
           "registration_ms": None, "forced_MiB": None, "intercepted": None, "by_nic_percent": None}
    counters, peaks = [], []
    for role in ROLES:
        peaks.append([int(n) / 1024 for n in read(f"{base}.{role}.peak").split()])
        pid = read(f"{base}.{role}.pid").strip()
        took = registration_ms(read(f"{base}.trace"), pid) if pid else None
        if took is not None:
            row["registration_ms"] = max(took, row["registration_ms"] or 0)
        try:
            counters.append(json.loads(read(f"{base}.{role}.json")))
        except json.JSONDecodeError:
            counters.append({})
    # The larger end's; without one end's figure there is none.
    if all(peaks):
        row["VmPin_MiB"], row["VmRSS_MiB"] = map(max, zip(*peaks))
    row.update(measured(kind, read(f"{base}.client.out")))
    row["verified"] = verifies
    if wrap in UNPINNED:
        row.update(ways(counters))
        row["intercepted"] = all(
            c.get("counters", {}).get("hooks_calls", 0) > 0
            and c.get("counters", {}).get("regions_unpinned", 0) > 0 for c in counters)
        row["counters"] = dict(zip(ROLES, counters))
        forced = [c.get("gauges", {}).get("forced_peak_bytes") for c in counters]
        row["forced_MiB"] = None if None in forced else max(forced) / 2**20
    return row


def outcomes(tap):
    """{(wrap, case): completed} of the guest's TAP lines."""
    found = {}
    for match in re.finditer(r"^(not ok|ok) - (stock|hot|cold|np) (\w+)", tap, re.MULTILINE):
        found[match.group(2), match.group(3)] = match.group(1) == "ok"
    return found


def missing(row):
    """Names of what a completed run must show and does not: a figure that was not measured is no 0."""
    kind = CASES[row["case"]][1]
    wanted = ["VmPin_MiB", "VmRSS_MiB", "registration_ms"]
    wanted += [{"bandwidth": "bandwidth", "": None}.get(kind, "latency")]
    wanted += ["forced_MiB"] if row["wrap"] in UNPINNED else []
    return [name for name in wanted if name and row.get(name) is None]


def objections(rows):
    """Why this run proves nothing, or disproves something; empty when all is well."""
    found = []
    by_name = {(r["wrap"], r["case"]): r for r in rows}
    for row in rows:
        name = f"{row['program']} ({row['wrap']})"
        if not row["completed"]:
            found.append(f"{name}: did not complete")
            continue
        if missing(row):
            found.append(f"{name}: not measured: {', '.join(missing(row))}")
        if row["wrap"] not in UNPINNED:
            continue
        posts, pinned = row["posts"], row["VmPin_MiB"] or 0
        ways = f"{posts['leased']} requests were leased, {posts['unload']} went to the peer's CPU"
        if not row["intercepted"]:
            found.append(f"{name}: not intercepted, the counters of both ends show no unpinned region")
        elif not row["case"].startswith("send") and pinned > UNPINNED_MIB + LINK_MIB:
            found.append(f"{name}: pinned {pinned:.0f} MiB, more than {UNPINNED_MIB} and {LINK_MIB} of its links")
        elif row["wrap"] == "hot" and row["case"] in LEASED and posts["leased"] <= posts["unload"]:
            found.append(f"{name}: not hot, {ways}")
        elif row["wrap"] == "cold" and row["case"] in LEASED and (posts["leased"] or not posts["unload"]):
            found.append(f"{name}: not cold, {ways}")
        elif row["wrap"] == "np" and row["case"] in VIEWED and posts["np_read"] <= posts["unload"]:
            found.append(f"{name}: not read by the NIC, {posts['np_read']} READs went by views, {ways}")
    for case in ("write_bw", "read_bw", "sparse"):
        row = by_name.get(("stock", case))
        if row and row["completed"] and row["VmPin_MiB"] is not None and row["VmPin_MiB"] < 2 * UNPINNED_MIB:
            found.append(f"{row['program']} (stock): pinned only {row['VmPin_MiB']:.0f} MiB, nothing to compare with")
    return found


def cell(value, form):
    # perftest says inf where it cannot make out the virtual processor's clock.
    return "-" if value is None or math.isinf(value) else format(value, form)


def print_table(rows, np):
    print(f"{'program':<34}{'':<16}{'register':>10}{'VmPin':>8}{'VmRSS':>8}"
          f"{'bandwidth':>11}{'latency':>10}{'by NIC':>8}  data")
    print(f"{'':<50}{'ms':>10}{'MiB':>8}{'MiB':>8}{'MiB/s':>11}{'us':>10}{'%':>8}")
    for row in rows:
        title = row["program"] if row["wrap"] == "stock" else ""
        named = f"{title:<34}{WRAPS[row['wrap']]:<16}"
        if not row["completed"]:
            print(f"{named}{'did not complete':>18}")
            continue
        print(f"{named}{cell(row['registration_ms'], '10.2f'):>10}"
              f"{cell(row['VmPin_MiB'], '.1f'):>8}{cell(row['VmRSS_MiB'], '.1f'):>8}"
              f"{cell(row.get('bandwidth'), '.1f'):>11}{cell(row.get('latency'), '.0f'):>10}"
              f"{cell(row['by_nic_percent'], '.0f'):>8}"
              f"  {'verified' if row['verified'] else '-'}"
              f"{'' if not row['forced_MiB'] else '  (receives force %.0f MiB)' % row['forced_MiB']}")
    print("\nBoth ends on one virtual host without hardware acceleration: compare the rows of a program, not the "
          f"numbers with a NIC's.\nMemory is the larger end's peak, as the kernel counts it; 'register' is its time inside ibv_reg_mr. "
          f"Unpinned, adverb may pin {UNPINNED_MIB} MiB: hot, what is\nused again and again is leased, and the NIC "
          "carries it; cold, nothing is, and the owner's CPU does."
          + ("\nnp: what is WRITTEN again and again is leased; the NIC READs with nothing pinned, by adverb.ko." if np else ""))


def main():
    arguments = [a for a in sys.argv[1:] if a not in ("--json", "--np")]
    np = "--np" in sys.argv
    folder, cases = arguments[0], arguments[1:] or list(CASES)
    completed = outcomes(read(folder, "tap"))
    rows = []
    for case in cases:
        for wrap in (wrap for wrap in WRAPS if np or wrap != "np"):
            rows.append({**row_of(folder, case, wrap), "completed": completed.get((wrap, case), False)})
    wrong = objections(rows)
    if "--json" in sys.argv:
        print(json.dumps({"ok": not wrong, "objections": wrong, "rows": rows}, indent=2))
    else:
        print_table(rows, np)
        print()
        for objection in wrong:
            print(f"demo: {objection}")
        print("demo: every run completed, was intercepted where it should be, and data was verified"
              if not wrong else f"demo: failed, {len(wrong)} objections")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
