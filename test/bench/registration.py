# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""How long ibv_reg_mr and ibv_dereg_mr take, of memory that is there and memory that is not, among few mappings
and among many: stock on soft-RoCE, which pins, and adverb beside it in the same virtual host. With a kernel that can
be asked for one mapping (PROCMAP_QUERY, Linux 6.11) and with one whose list of all has to be read. Times under
emulation are good as ratios only."""

import os
import statistics
import subprocess

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
KERNELS = {"6.12": "asked", "6.1": "read"}
MAPPINGS = (100, 10000)
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB, GIB)
HUGE = 64 * GIB
TURNS = 3     # of stock and adverb, one after the other
ROUNDS = 5    # of each size in a turn
SMALL = 1.5   # times stock's time of memory that is there, below 64 KiB
LARGE = 1.0   # and from there on
FLAT = 1.2    # of adverb, the longest beside a MiB


def measure(build, kernel):
    """{(whose, mappings, bytes, state): [(register, deregister)]}, microseconds; nothing: it cannot be tried here"""
    lines = []
    for mappings in MAPPINGS:
        for whose, words, sizes in (("stock", "", SIZES), ("adverb", "adverb run --profile unpinned --", (*SIZES, HUGE))):
            program = f"$ADVERB_BUILD/test/bench/bench_registration {mappings} {ROUNDS} {' '.join(map(str, sizes))}"
            lines.append(f"{words} {program} | sed 's/^/{whose} {mappings} /'")
    command = f"ulimit -l unlimited; for i in $(seq {TURNS}); do {'; '.join(lines)}; done"
    done = subprocess.run([os.path.join(REPO, "scripts", "vm"), "--kernel", kernel, "--mem", "3072", "--timeout", "1800",
                           "--", command], check=False, env={**os.environ, "ADVERB_BUILD": build},
                          stdout=subprocess.PIPE, text=True)
    if done.returncode == 77:
        return {}
    found = {}
    for line in done.stdout.splitlines():
        words = line.split()
        if len(words) == 6 and words[0] in ("stock", "adverb"):
            key = words[0], int(words[1]), int(words[2]), words[3]
            found.setdefault(key, []).append((float(words[4]), float(words[5])))
    if done.returncode != 0 or not found:
        raise RuntimeError("the guest measured nothing:\n" + done.stdout)
    return found


def size_name(size):
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def rows_of(kernel, found):
    def median(which, *key):
        return statistics.median(pair[which] for pair in found[key])

    for mappings in MAPPINGS:
        for which, verb in enumerate(("register", "deregister")):
            for size in SIZES:
                there = median(which, "stock", mappings, size, "resident")
                for state in ("resident", "absent"):
                    adverb = median(which, "adverb", mappings, size, state)
                    row = {"name": f"{verb}_{size}_{state}_{mappings}_{KERNELS[kernel]}", "kernel": kernel,
                           "title": f"{verb} {size_name(size)}, {state}, {mappings} mappings", "adverb": adverb,
                           "stock": there, "value": round(adverb / there, 2)}
                    if ("stock", mappings, size, state) in found:
                        row["itself"] = median(which, "stock", mappings, size, state)
                    # Reading a list of ten thousand has its price on a kernel that knows no other way.
                    if which == 0 and (mappings == MAPPINGS[0] or KERNELS[kernel] == "asked"):
                        row["bar"] = LARGE if size >= 64 * KIB else SMALL
                    yield row
        longest = median(0, "adverb", mappings, HUGE, "absent")
        mib = median(0, "adverb", mappings, MIB, "absent")
        yield {"name": f"flat_{mappings}_{KERNELS[kernel]}", "kernel": kernel, "adverb": longest, "stock": mib,
               "title": f"register {size_name(HUGE)}, beside adverb's 1 MiB, {mappings} mappings",
               "value": round(longest / mib, 2), "bar": FLAT}


def run(build):
    rows = []
    for kernel in KERNELS:
        found = measure(build, kernel)
        rows += rows_of(kernel, found) if found else []
    return rows


def show(rows):
    print("microseconds, medians, in a virtual host; stock: of the same memory, and of memory that is there")
    print(f"{'':58}{'stock':>10}{'there':>10}{'adverb':>10}{'ratio':>7}{'bar':>6}")
    for r in rows:
        itself = f"{r['itself']:10.1f}" if "itself" in r else f"{'-':>10}"
        print(f"{r['kernel']:6}{r['title']:52}{itself}{r['stock']:10.1f}{r['adverb']:10.1f}{r['value']:7.2f}"
              f"{r.get('bar', '-'):>6}")
