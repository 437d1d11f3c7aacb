#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# gate: yes
"""Compares what libadverb.so exports, verbs.def, signals.def, and the installed libraries."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import table as t

BUILD = os.environ["ADVERB_BUILD"]
REPO = os.environ.get("ADVERB_REPO") or os.path.dirname(os.path.dirname(sys.path[0]))
LIBRARY = os.path.join(BUILD, "preload/libadverb.so")

# Asks the loader for every hook, as a program that looks verbs up by name and node does, and prints
# those that are not adverb's.
LOOKUP = """
import ctypes, sys
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]
ctypes.CDLL("libibverbs.so.1", ctypes.RTLD_GLOBAL)
libc = ctypes.CDLL(None)
libc.dlvsym.restype = ctypes.c_void_p
libc.dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
libc.dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(Info)]
for symbol in sys.argv[1:]:
    name, node = symbol.encode().split(b"@")
    address, info = libc.dlvsym(None, name, node), Info()
    if not address or not libc.dladdr(address, ctypes.byref(info)) or b"libadverb.so" not in info.file:
        print(symbol)
"""


def report(name, problem):
    print(f"not ok - {name}: {problem}" if problem else f"ok - {name}")


def not_found(table):
    symbols = [f"{name}@{node}" for name, node in sorted(t.hooks(table))]
    done = subprocess.run([sys.executable, "-c", LOOKUP, *symbols], capture_output=True, text=True,
                          env={**os.environ, "LD_PRELOAD": LIBRARY, "ADVERB_POLICY": "off"})
    if done.returncode != 0:
        return done.stderr.strip().replace("\n", " ")
    return f"others answer for {done.stdout.split()}" if done.stdout else None


def main():
    if not os.path.exists(LIBRARY):
        report("libadverb.so is built", f"{LIBRARY} is missing")
        return
    text = ""
    for path in ("preload/provider/verbs.def", "preload/interpose/signals.def",
                 "preload/interpose/mappings.def", "preload/interpose/descriptors.def"):
        with open(os.path.join(REPO, path), encoding="utf-8") as file:
            text += file.read()
    table = t.rows(text)
    exported = t.exports(LIBRARY)
    real = t.installed("libibverbs.so.1")
    stock = t.exports(real)
    report("the table was read", None if len(table["HOOK"]) >= 20 and len(table["PASS"]) >= 40
           else f"{len(table['HOOK'])} hooks, {len(table['PASS'])} passed")
    report("libadverb.so exports exactly the hooks and its own function, each at its node", t.wrong_exports(table, exported))
    report("libadverb.so needs nothing but libc, libm and the loader", ", ".join(sorted(
        n for n in t.needed(LIBRARY) if not n.startswith(("libc.so", "libm.so", "ld-linux")))) or None)
    report("every required symbol is in the installed libibverbs", t.missing_installed(table, stock))
    libc = t.exports(t.installed("libc.so.6"))
    report("every hook of the C library stands for a function of it, at its node",
           t.missing_in_c_library(table, libc) if table["SIGNALS"] else "there is none")
    report("every symbol of the installed libibverbs is decided on", t.unlisted(table, stock))
    report("the loader gives adverb's hook for every name and node", not_found(table))

    # The comparisons above can fail.
    moved = t.rows(text.replace("create_cq, IBVERBS_1.1", "create_cq, IBVERBS_1.0"))
    report("a hook at a wrong node is noticed", None if t.wrong_exports(moved, exported) else "it is not")
    older = t.rows(text.replace("pthread_sigmask, GLIBC_2.32", "pthread_sigmask, GLIBC_2.31"))
    report("a hook of the C library at a wrong node is noticed", None
           if t.wrong_exports(older, exported) and t.missing_in_c_library(older, libc) else "it is not")
    more = t.rows(text + "\nHOOK(int, nothing, IBVERBS_1.1, required, (), (), -1)\n")
    report("a hook that is not exported is noticed",
           None if t.wrong_exports(more, exported) else "it is not")
    report("a required symbol the installed library lacks is noticed",
           None if t.missing_installed(more, stock) else "it is not")
    less = t.rows(text.replace("PASS(fork_init,", "PASS(fork_in,"))
    report("a symbol nobody decided on is noticed", None if t.unlisted(less, stock) else "it is not")
    report("a leaked symbol is noticed",
           None if t.wrong_exports(table, exported | {("_ZSt4cout", "")}) else "it is not")


main()
