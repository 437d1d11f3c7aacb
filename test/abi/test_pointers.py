#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# gate: yes
"""Whose functions inline verbs reach, stock and under policies, over the loopback device."""

import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import table as t

BUILD = os.environ["ADVERB_BUILD"]
REPO = os.environ.get("ADVERB_REPO") or os.path.dirname(os.path.dirname(sys.path[0]))
PINNED = '{"version": 1, "rules": [{"register": "pinned"}, {"peers": "none"}]}'


def report(name, problem):
    print(f"not ok - {name}: {problem}" if problem else f"ok - {name}")


def pointers(scratch, policy=None):
    """{(object, function): owner}"""
    environment = {
        **os.environ, "HOME": scratch, "XDG_CONFIG_HOME": scratch,
        "LD_LIBRARY_PATH": os.path.join(BUILD, "test/loopback"),
        "ADVERB_LOOPBACK_FABRIC": "adverb-test-abi",
    }
    if policy:
        environment |= {"LD_PRELOAD": os.path.join(BUILD, "preload/libadverb.so"),
                        "ADVERB_POLICY": policy}
    done = subprocess.run([os.path.join(BUILD, "test/abi/pointers")], capture_output=True, text=True,
                          env=environment, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr[-500:]}")
    lines = (line.split() for line in done.stdout.splitlines())
    return {(kind, name): owner for kind, name, owner in lines}


def main():
    with open(os.path.join(REPO, "preload/provider/verbs.def"), encoding="utf-8") as text:
        inline = t.rows(text.read())["INLINE"]
    replaced = {name for name, what in inline if what != "passed"}
    with tempfile.TemporaryDirectory() as scratch:
        pinned = os.path.join(scratch, "pinned.json")
        with open(pinned, "w", encoding="utf-8") as policy:
            policy.write(PINNED)
        stock = pointers(scratch)
        off, idle = pointers(scratch, "off"), pointers(scratch, pinned)
        unpinned = pointers(scratch, "unpinned")

    report("every inline verb of the table was looked at", ", ".join(
        name for name, _ in inline if ("used", name) not in stock) or None)
    report("under profile off every pointer is the provider's", None if off == stock else str(
        {key for key in stock if off[key] != stock[key]}))
    report("under a policy that pins all every pointer is the provider's",
           None if idle == stock else str({key for key in stock if idle[key] != stock[key]}))
    wanted = {key: "adverb" if owner == "provider" and
              (key[0] in ("qp_ex", "cq_ex") or (key[0] == "used" and key[1] in replaced)) else owner
              for key, owner in stock.items() if key[0] != "opened"}
    wrong = {f"{key}: {unpinned[key]}" for key, owner in wanted.items() if unpinned[key] != owner}
    report("under profile unpinned what the table calls managed or refused is adverb's, the rest is not",
           str(wrong) if wrong else None)
    late = [name for name in ("post_send", "post_recv", "poll_cq", "req_notify_cq")
            if unpinned["opened", name] != "adverb"]
    report("a program never sees the provider's post and poll, which it could put functions of its own before",
           ", ".join(late) or None)
    report("the provider of this test has what is looked for", None if stock["qp_ex", "wr_start"] ==
           stock["cq_ex", "start_poll"] == stock["used", "post_send"] == "provider" else str(stock))


main()
