#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# gate: yes
"""What libadverb.so has of its own that is writable and static, read from its symbol table: nothing
but what stands in LIST with a reason. All else belongs to a World (preload/world), of which a process
may hold two. And the keyword thread_local stands in world/sync.h alone, whose wrapper fibres can
carry along; locks and atomics bear its names where a simulation needs that."""

import os
import re
import subprocess
import sys

# Pattern of the demangled name: why it cannot belong to a World.
LIST = {
    r"adverb::interpose::\(anonymous namespace\)::process\(\)::(memory|made)":
        "the process's own World",
    r"adverb::interpose::process_heap\(\)::(memory|made)":
        "operators new and delete take no World, and allocate before there is one",
    r"adverb::interpose::\(anonymous namespace\)::table<.*>":
        "an unmanaged post finds whose it is in a dozen instructions",
    r"adverb::interpose::\(anonymous namespace\)::(writers|lock)":
        "of that table; of patching, as a provider's context has one set of pointers",
    r"adverb::interpose::process_edge\(\)::edge": "has no state but its table of functions",
    r"adverb::interpose::\(anonymous namespace\)::constructed":
        "noted by a constructor, which takes no argument",
    r"adverb::interpose::active\(\)::on": "asked by hooks, which take no World",
    r"adverb::interpose::watch_forks\(\)::once": "handlers of fork are the process's",
    r"adverb::observe::\(anonymous namespace\)::exiting_(page|before)":
        "handlers of exit take no argument",
    r"adverb::observe::\(anonymous namespace\)::first_stderr":
        "what the process's descriptor 2 was before it could do anything; tests alone write it again",
    r"adverb::memory::\(anonymous namespace\)::(chosen|cannot_be_asked)":
        "what the kernel lets this process do to its own memory",
    r"adverb::memory::\(anonymous namespace\)::next":
        "where this process has room for what adverb maps",
    r"adverb::memory::(native_state|\(anonymous namespace\)::(stored|owner|listener|changing|"
    r"real_sigaction\(.*\)::found)|take_over\(\)::watching)":
        "dispositions of signals are the process's, and their handlers take no argument",
    r"adverb::own_fds::\(anonymous namespace\)::owne[dr]":
        "which numbers are adverb's, for hooks of the C library and a fork child",
    r"adverb::interpose::\(anonymous namespace\)::(interrupting|next(_close)?\(\)::(found|looked))":
        "of the C library's functions that take no more arguments",
    r"adverb::policy::.*(schema\(\)::parsed|check_object\(.*\)::nothing)":
        "constants of JSON, never written again once they are made",
    r"adverb::reliability::isal\(\)::found": "which library the host has; never written again once it is looked for",
    r"adverb::ThreadLocal<.*>::get\(\)::value": "each thread's own, behind the wrapper",
}

# Where a simulation may put fibres in the place of threads.
ROOMS = ("link", "model", "queue", "registration", "reliability", "steering", "transfer")

WRITABLE = (".data", ".bss", ".tdata", ".tbss")


def statics(library):
    """(section, demangled name) of every writable object of ours."""
    listing = subprocess.run(["objdump", "--syms", "--demangle", library], capture_output=True,
                             text=True, check=True).stdout
    for line in listing.splitlines():
        # 0000000000123456 l     O .bss	0000000000000008              .hidden name
        found = re.match(r"[0-9a-f]+ .{7} (\S+)\t[0-9a-f]+\s+(?:\.hidden )?(.*)", line)
        if found and found[1] in WRITABLE and "adverb::" in found[2]:
            yield found[1], found[2]


def plain(name):
    """Without what says that it is another's guard, or a copy a compiler made."""
    name = re.sub(r"^(guard variable for|TLS (init|wrapper) function for) ", "", name)
    return re.sub(r"\[abi:\w+\]|\[clone .*\]", "", name)


def report(name, findings):
    print(f"not ok - {name}: {len(findings)} found" if findings else f"ok - {name}")
    for finding in findings:
        print(f"# {finding}")
    return not findings


def spelled(pattern, *folders):
    """The lines of code in these folders, but for the wrappers' own file, in which it stands."""
    sources = subprocess.run(
        ["git", "ls-files", *(f"{folder}/*{end}" for folder in folders for end in (".h", ".cpp"))],
        capture_output=True, text=True, check=True).stdout.split()
    lines = []
    for path in sources:
        if path == "preload/world/sync.h" or not os.path.exists(path):
            continue
        with open(path, encoding="utf-8") as file:
            lines += [f"{path}:{number}: {line.strip()}" for number, line in enumerate(file, 1)
                      if re.search(pattern, line.split("//")[0])]
    return lines


def main():
    library = os.path.join(os.environ["ADVERB_BUILD"], "preload", "libadverb.so")
    found = [(section, plain(name)) for section, name in statics(library)]
    good = report("libadverb.so has a symbol table", [] if found else [library])
    good &= report("no mutable object is static but those with a reason", sorted(
        {f"{section} {name}" for section, name in found
         if not any(re.fullmatch(pattern, name) for pattern in LIST)}))
    good &= report("every reason has its object", [
        pattern for pattern in LIST if not any(re.fullmatch(pattern, name) for _, name in found)])
    good &= report("thread_local stands behind its wrapper only", spelled(r"\bthread_local\b", "preload"))
    good &= report("rooms with threads name locks and atomics as world/sync.h does", spelled(
        r"std::(atomic<|mutex\b|shared_mutex\b|recursive_mutex\b|condition_variable\b)",
        *(f"preload/{room}" for room in ROOMS)))
    return 0 if good else 1


sys.exit(main())
