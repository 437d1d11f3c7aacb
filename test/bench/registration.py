# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What ibv_reg_mr and ibv_dereg_mr cost, of memory that is there and memory that is not, among few mappings and among
many, as instructions of user and kernel, on a kernel that can be asked for one mapping (PROCMAP_QUERY, Linux 6.11) and
on one whose list of all has to be read: stock on soft-RoCE, which pins, and adverb beside it in the same virtual host.
And what comes of not pinning: registration_use.py."""

import statistics

import guest
import registration_guest
import registration_use
import svg
from bars import attempt
from native import TARGETS as NATIVE_TARGETS

TARGETS = [*{*guest.TARGETS, *NATIVE_TARGETS}, *(f"test/bench/bench_{program}" for program in
                                                  ("registration", "footprint", "start", "lending"))]
KERNELS = {"6.12": "asked", "6.1": "read"}
MAPPINGS = (100, 10000)
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB, GIB)
SHORT_SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB)  # without --long
HUGE = 64 * GIB
ROUNDS, SHORT_ROUNDS = 15, 5   # of each size up to a MiB
SMALL = 1.5   # times stock's instructions of memory that is there, below 64 KiB
LARGE = 1.0   # and from there on
FLAT = 1.2    # of adverb, the longest beside a MiB
OFF = 0.03    # by how much a known number of instructions may be miscounted
TABLES = registration_use.TABLES | {
    "calibration": "instructions, user and kernel, in a virtual host whose clock counts them",
    "instructions": "thousands of instructions: medians (and quartiles); stock: of the same memory, and of memory that is\n"
                    "there, to which the ratio is\n"
                    f"{'':49}{'stock':>25}{'there':>25}{'adverb':>25}{'ratio':>9}",
}


NO_FIGURES = "the virtual host has no figures of it"


def size_name(size):
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def spread(values):
    """The median and the quartiles around it"""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "quartiles": [low, high]}


def size_rows(kernel, found, mappings, size):
    for which, verb in enumerate(("register", "deregister")):
        def of(whose, state, which=which):
            samples = found.get((whose, mappings, size, state))
            return samples and spread([sample[which] for sample in samples])

        def beside(state, of=of):
            adverb, there = of("adverb", state), of("stock", "resident")
            if not adverb or not there:
                raise RuntimeError(NO_FIGURES)
            return {"adverb": adverb, "stock": there, "itself": of("stock", state),
                    "value": float(f"{adverb['median'] / there['median']:.3g}")}

        for state in ("resident", "absent"):
            bar = {"at_most": LARGE if size >= 64 * KIB else SMALL} if verb == "register" else {}
            yield attempt(lambda state=state, beside=beside: beside(state),
                          name=f"{verb}_{size}_{state}_{mappings}_{KERNELS[kernel]}", table="instructions", part="sizes",
                          kernel=kernel, mappings=mappings, verb=verb, bytes=size, state=state,
                          title=f"{verb} {size_name(size)}, {state}, {mappings} mappings", **bar)


def flat_row(kernel, found, mappings):
    def beside():
        samples = [found.get(("adverb", mappings, size, "absent")) for size in (HUGE, MIB)]
        if None in samples:
            raise RuntimeError(NO_FIGURES)
        longest, mib = (spread([registered for registered, _ in some]) for some in samples)
        return {"adverb": longest, "stock": mib, "value": round(longest["median"] / mib["median"], 3)}
    return attempt(beside, name=f"flat_{mappings}_{KERNELS[kernel]}", table="instructions", part="flat", kernel=kernel,
                   title=f"register {size_name(HUGE)}, {mappings} mappings, beside adverb's 1 MiB", at_most=FLAT)


def clock_row(kernel, loops):
    """How well the clock counts what is known"""
    def known():
        figures = spread([counted for _, counted in loops])
        return {"known": loops[0][0], **figures, "longest": max(counted for _, counted in loops), "times": len(loops),
                "value": round(abs(figures["median"] / loops[0][0] - 1), 4)}
    return attempt(known, name=f"calibration_{KERNELS[kernel]}", table="calibration", kernel=kernel, at_most=OFF)


def instruction_rows(build, options, kernel):
    sizes, rounds = (SIZES, ROUNDS) if options.long else (SHORT_SIZES, SHORT_ROUNDS)
    sizes = dict.fromkeys(sizes, ("stock", "adverb")) | {HUGE: ("adverb",)}
    mappings = MAPPINGS[:1] if options.quick else MAPPINGS
    loops, ended = [], set()
    for (many, size), found, loops in registration_guest.instructions(build, kernel, mappings, rounds, sizes):
        if not ended:
            yield clock_row(kernel, loops[:])
        ended.add((many, size))
        if size == HUGE:
            yield flat_row(kernel, found, many)
        else:
            yield from size_rows(kernel, found, many, size)
    if len(ended) != len(mappings) * len(sizes):
        raise RuntimeError(f"the virtual host with Linux {kernel} has ended early")


def run(build, options):
    if not options.quick:
        yield from registration_use.start_rows(build)
        yield from registration_use.dereg_rows(build)
    for kernel in KERNELS if options.long else ("6.12",):
        try:
            yield from instruction_rows(build, options, kernel)
        except RuntimeError as error:
            yield {"name": f"instructions, Linux {kernel}", "value": None, "failed": str(error)}
    if not options.quick:
        yield from registration_use.guest_rows(build, options)


def count(figures):
    """A median and its quartiles, in thousands"""
    if figures is None:
        return f"{'-':>25}"
    low, high = figures["quartiles"]
    return f"{figures['median'] / 1000:9.1f} {f'({low / 1000:.1f}..{high / 1000:.1f})':>15}"


def line(row):
    if row["table"] == "calibration":
        low, high = row["quartiles"]
        return (f"{row['kernel']:5}a loop of {row['known']} instructions counts as {row['median']:.0f} "
                f"({low:.0f}..{high:.0f}, {row['longest']} once of {row['times']}): off by {row['value']:.2%}")
    if row["table"] == "instructions":
        return (f"{row['kernel']:5}{row['title']:44}{count(row.get('itself'))}{count(row['stock'])}{count(row['adverb'])}"
                f"{row['value']:9.3g}")
    return registration_use.line(row)


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
            lines["bar"] = [r["at_most"] for r in mine if r["state"] == "absent"]
            charts.append({"title": f"Linux {kernel} (mappings are {way}), {mappings} mappings", "lines": lines,
                           "x": list(dict.fromkeys(size_name(r["bytes"]) for r in mine))})
    return svg.page("Instructions of ibv_reg_mr, times stock's of memory that is there", charts)
