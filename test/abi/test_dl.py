#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# gate: yes
"""libadverb-dl.so gives programs that dlopen libibverbs adverb's hooks, and nothing else."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import table as t

BUILD = os.environ["ADVERB_BUILD"]
LIBRARY = os.path.join(BUILD, "preload/libadverb.so")
DL = os.path.join(BUILD, "preload/libadverb-dl.so")


def report(name, problem):
    print(f"not ok - {name}: {problem}" if problem else f"ok - {name}")


def lookups(preload, loopback=False):
    environment = {**os.environ, "LD_PRELOAD": preload, "ADVERB_POLICY": "unpinned"}
    if loopback:
        environment |= {"LD_LIBRARY_PATH": os.path.join(BUILD, "test/loopback"),
                        "ADVERB_LOOPBACK_FABRIC": "adverb-test-abi"}
    done = subprocess.run([os.path.join(BUILD, "test/abi/dl")], capture_output=True, text=True,
                          env=environment, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr[-500:]}")
    return {tuple(line.split()[:2]): line.split()[2] for line in done.stdout.splitlines()}


def main():
    alone, both = lookups(LIBRARY), lookups(f"{LIBRARY}:{DL}")
    exported = {name for name, _ in t.exports(DL)}
    report("libadverb-dl.so exports dlsym and dlvsym only",
           None if exported == {"dlsym", "dlvsym"} else str(sorted(exported)))
    report("without it a handle of libibverbs escapes", None
           if alone["dlsym", "ibv_reg_mr"] == "verbs" else str(alone))

    def expect(name, *wanted):
        wrong = [f"{how} {symbol} is {both[how, symbol]}" for how, symbol, owner in wanted
                 if both[how, symbol] != owner]
        report(name, "; ".join(wrong) or None)

    expect("a hooked verb looked up in a handle is adverb's", ("dlsym", "ibv_reg_mr", "adverb"),
           ("dlsym", "ibv_create_qp", "adverb"), ("dlvsym-1.1", "ibv_reg_mr", "adverb"))
    expect("a verb that is passed stays the library's", ("dlsym", "ibv_fork_init", "verbs"))
    expect("the old ABI stays the library's", ("dlvsym-1.0", "ibv_reg_mr", "verbs"))
    expect("what the library lacks is not found", ("dlsym", "ibv_no_such_verb", "none"),
           ("dlvsym-9.9", "ibv_reg_mr", "none"))
    expect("other look-ups are the C library's", ("default", "malloc", "other"),
           ("next", "dlsym", "other"))
    markers = ":".join(os.path.join(BUILD, f"test/abi/libmarker{n}.so") for n in (1, 2))
    found = lookups(f"{LIBRARY}:{DL}:{markers}").get(("marker", "next"))
    report("RTLD_NEXT means what follows the caller, not libadverb-dl.so",
           None if found == "2" else f"marker {found}")
    report("a device opened through looked-up verbs can be used and closed", None
           if ("opened", "device") in lookups(f"{LIBRARY}:{DL}", loopback=True) else "it cannot")


main()
