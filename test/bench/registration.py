# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What ibv_reg_mr and ibv_dereg_mr cost, of memory that is there and memory that is not, among few mappings and among
many, as instructions of user and kernel, on a kernel that can be asked for one mapping (PROCMAP_QUERY, Linux 6.11) and
on one whose list of all has to be read: stock on soft-RoCE, which pins, and adverb beside it in the same virtual host.
And what comes of not pinning: registration_use.py."""

import statistics

import registration_guest
import registration_use
import svg

KERNELS = {"6.12": "asked", "6.1": "read"}
MAPPINGS = (100, 10000)
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB, GIB)
HUGE = 64 * GIB
ROUNDS = 15   # of each size up to a MiB
SMALL = 1.5   # times stock's instructions of memory that is there, below 64 KiB
LARGE = 1.0   # and from there on
FLAT = 1.2    # of adverb, the longest beside a MiB
OFF = 0.03    # by how much a known number of instructions may be miscounted


def size_name(size):
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def spread(values):
    """The median and the quartiles around it"""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "quartiles": [low, high]}


def size_rows(kernel, found):
    for mappings in MAPPINGS:
        for which, verb in enumerate(("register", "deregister")):
            for size in SIZES:
                def of(whose, state, which=which, mappings=mappings, size=size):
                    samples = found.get((whose, mappings, size, state))
                    return samples and spread([sample[which] for sample in samples])

                there = of("stock", "resident")
                for state in ("resident", "absent"):
                    adverb = of("adverb", state)
                    row = {"name": f"{verb}_{size}_{state}_{mappings}_{KERNELS[kernel]}", "part": "sizes",
                           "kernel": kernel, "mappings": mappings, "verb": verb, "bytes": size, "state": state,
                           "title": f"{verb} {size_name(size)}, {state}, {mappings} mappings", "adverb": adverb,
                           "stock": there, "itself": of("stock", state),
                           "value": float(f"{adverb['median'] / there['median']:.3g}")}
                    if which == 0:
                        row["bar"] = LARGE if size >= 64 * KIB else SMALL
                    yield row


def flat_rows(kernel, found):
    for mappings in MAPPINGS:
        longest, mib = (spread([sample[0] for sample in found["adverb", mappings, size, "absent"]])
                        for size in (HUGE, MIB))
        yield {"name": f"flat_{mappings}_{KERNELS[kernel]}", "part": "flat", "kernel": kernel, "adverb": longest,
               "stock": mib, "title": f"register {size_name(HUGE)}, {mappings} mappings, beside adverb's 1 MiB",
               "value": round(longest["median"] / mib["median"], 3), "bar": FLAT}


def clock_row(kernel, loops):
    """How well the clock counts what is known"""
    known = loops[0][0]
    figures = spread([counted for _, counted in loops])
    return {"name": f"calibration_{KERNELS[kernel]}", "part": "calibration", "kernel": kernel, "known": known, **figures,
            "longest": max(counted for _, counted in loops), "times": len(loops),
            "value": round(abs(figures["median"] / known - 1), 4), "bar": OFF}


def run(build):
    rows = []
    for kernel in KERNELS:
        measured = registration_guest.instructions(build, kernel, MAPPINGS, ROUNDS,
                                                   {"stock": SIZES, "adverb": (*SIZES, HUGE)})
        if measured is not None:
            found, loops = measured
            rows += [clock_row(kernel, loops), *size_rows(kernel, found), *flat_rows(kernel, found)]
    return rows + list(registration_use.rows(build))


def count(figures):
    """A median and its quartiles, in thousands"""
    if figures is None:
        return f"{'-':>25}"
    low, high = figures["quartiles"]
    return f"{figures['median'] / 1000:9.1f} {f'({low / 1000:.1f}..{high / 1000:.1f})':>15}"


def show(rows):
    print("thousands of instructions, user and kernel, in a virtual host: medians (and quartiles); stock: of the same")
    print("memory, and of memory that is there, to which the ratio is")
    print(f"{'':49}{'stock':>25}{'there':>25}{'adverb':>25}{'ratio':>9}{'bar':>6}")
    for r in rows:
        if r.get("part") == "calibration":
            low, high = r["quartiles"]
            print(f"{r['kernel']:5}a loop of {r['known']} instructions counts as {r['median']:.0f} ({low:.0f}..{high:.0f}, "
                  f"{r['longest']} once of {r['times']}): off by {r['value']:.2%}")
        elif r.get("part") in ("sizes", "flat"):
            print(f"{r['kernel']:5}{r['title']:44}{count(r.get('itself'))}{count(r['stock'])}{count(r['adverb'])}"
                  f"{r['value']:9.3g}{r.get('bar', '-'):>6}")
    registration_use.show([r for r in rows if r.get("part") == "use"])


def draw(rows):
    """Each kernel and number of mappings a chart: instructions of ibv_reg_mr by size, beside stock's of memory there"""
    charts = []
    for kernel, way in KERNELS.items():
        for mappings in MAPPINGS:
            mine = [r for r in rows if r.get("part") == "sizes" and r["verb"] == "register"
                    and (r["kernel"], r["mappings"]) == (kernel, mappings)]
            if not mine:
                continue
            lines = {f"adverb, {state}": [r["value"] for r in mine if r["state"] == state]
                     for state in ("resident", "absent")}
            lines["stock, absent"] = [r["itself"] and r["itself"]["median"] / r["stock"]["median"]
                                      for r in mine if r["state"] == "absent"]
            lines["bar"] = [r["bar"] for r in mine if r["state"] == "absent"]
            charts.append({"title": f"Linux {kernel} (mappings are {way}), {mappings} mappings", "lines": lines,
                           "x": [size_name(size) for size in SIZES]})
    return svg.page("Instructions of ibv_reg_mr, times stock's of memory that is there", charts)
