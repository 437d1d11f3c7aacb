#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A well-formed liar on the real wire (README.md). Prints TAP."""

import argparse
import os
import re
import subprocess
import sys
import time
import traceback

sys.dont_write_bytecode = True
import options  # pylint: disable=wrong-import-position


def heed():
    """What the command line says, into the options"""
    parser = argparse.ArgumentParser(prog="liar.py", description=__doc__)
    parser.add_argument("library", type=os.path.abspath)
    parser.add_argument("victim", type=os.path.abspath)
    parser.add_argument("pattern", nargs="?", default="", help="of the attacks, those whose names it is found in, as regular expressions go")
    parser.add_argument("--loopback", type=os.path.abspath, help="folder of the loopback device, to use that")
    parser.add_argument("--device")
    parser.add_argument("--gid", type=int, help="index of the device's address")
    parser.add_argument("--level", choices=("host", "user", "key"))
    parser.add_argument("--victims", help="user that they are; else the liar's own")
    parser.add_argument("--liar", help="user that the liar is")
    parser.add_argument("--other", help="address of a second host, with a keeper.py at --keeper; one of the victims is there")
    parser.add_argument("--beside", choices=("owner", "initiator"), help="whom of the victims the liar's host is, where there are two")
    parser.add_argument("--keeper", type=int, help="port of the other host's keeper; ADVERB_LIAR_SECRET: what it asks for")
    parser.add_argument("--gate", action="store_true", help="the attacks whose verdict depends on no clock, and no other verdict")
    parser.add_argument("--slow", type=int, help="how many times as long all may take")
    parser.add_argument("--timeout", type=int, help="of the liar's queue pairs")
    parser.add_argument("--step", type=int, help="from one key of the device's to the next")
    parser.add_argument("--rounds", type=int, help="of the honest initiator alone")
    parser.add_argument("--part", type=int, help="of floods and altered bytes one in so many")
    parser.add_argument("--without", action="append", default=[], help="an attack that is left out, by its whole name")
    parser.parse_args(namespace=options)
    if options.gate:
        options.slow *= 12  # whoever waits for 5 s waits for a minute, which means that it hangs
    if bool(options.other) != bool(options.beside and options.keeper and options.victims):
        parser.error("--other wants --beside, --keeper and --victims")
    if options.level == "user" and not options.liar:
        parser.error("the kernel vouches for all processes of a user: --level user wants a --liar and --victims")
    if options.level == "key":
        options.key = os.urandom(32).hex().encode()


def enter():
    """A network of its own, so that nobody else's broker is met, and the loopback device"""
    for network in (["unshare", "-n"], ["unshare", "-rn"]):
        up = subprocess.run([*network, "ip", "link", "set", "lo", "up"], capture_output=True, check=False)
        if up.returncode == 0:
            break
    else:
        print("ok - the liar # SKIP no network of its own can be had")
        return
    linked = subprocess.run(["ldd", options.victim], capture_output=True, text=True, check=True).stdout
    runtime = re.findall(r"(\S*lib[at]san\.so\S*) \(", linked)
    leaks = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"  # Python itself leaks at its end
    os.environ.update({"LIAR_INSIDE": "1", "LD_LIBRARY_PATH": options.loopback,
                       "ADVERB_LOOPBACK_FABRIC": f"adverb-liar.{os.getpid()}",
                       **({"LD_PRELOAD": ":".join(runtime), "ASAN_OPTIONS": leaks} if runtime else {})})
    os.execvp(network[0], [*network, sys.executable, *sys.argv])


def documented():
    """What threats.md says, without its line breaks"""
    page = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../preload/link/threats.md")
    with open(page, encoding="utf-8") as file:
        return " ".join(file.read().split())


def attack_all(victims, attacks, allowed):
    """`victims`: makes a stage of them; `allowed`: by name, the sentences by which what comes of an attack is none of
    its harm"""
    stage = None
    try:
        for name, attack in attacks.items():
            if not re.search(options.pattern, name) or name in options.without:
                continue
            begun = time.monotonic()
            try:
                if stage is None:
                    stage = victims()
                    stage.open()
                attack(stage)
                print(f"ok - {name}", flush=True)
                for sentence in allowed.get(name, ()):
                    print(f"# documented: {sentence}")
            except Exception as why:  # pylint: disable=broad-exception-caught # whatever it is, it did not hold
                said = str(why) or traceback.extract_tb(why.__traceback__)[-1].line
                print(f"not ok - {name}: {said}", flush=True)
                print("\n".join("# " + line for line in traceback.format_exc().splitlines()), flush=True)
                stage = stage and stage.close()  # others are not to meet what it has left
            print(f"# {time.monotonic() - begun:.1f} s", flush=True)
    finally:
        if stage:
            stage.close()


def left_out(hosts, everything):
    """Without the attacks that have no meaning on two hosts: says which, and why"""
    if options.level == "user" and options.beside == "initiator":
        everything = hosts.SAME_NUMBER | everything
    without = hosts.LEFT_OUT[options.beside]
    for name, why in without.items():
        assert name in everything or options.level != "key", f"no attack is named '{name}'"
        if name in everything:
            print(f"# left out: {name}: {why}")
    return {name: attack for name, attack in everything.items() if name not in without}


def main():
    import keeper as k  # pylint: disable=import-outside-toplevel
    what = (options.victim, options.library, options.loopback, None, (options.device, str(options.gid)))
    # Before there is a thread or a device, which are to be the liar's own.
    keeper, process = k.keep(options.victims, *what) if options.victims else (k.Keeper(*what), None)
    secret = os.environ.pop("ADVERB_LIAR_SECRET", "").encode()
    far, _ = k.reach(options.other, options.keeper, secret, *what) if options.other else (keeper, None)
    owners, initiators = (far, keeper) if options.beside == "initiator" else (keeper, far)
    said = documented()
    if options.liar:
        k.become(options.liar)
    try:
        import attacks  # pylint: disable=import-outside-toplevel
        import hosts  # pylint: disable=import-outside-toplevel
        import neighbours  # pylint: disable=import-outside-toplevel
        import relays  # pylint: disable=import-outside-toplevel
        import thieves  # pylint: disable=import-outside-toplevel
    except ImportError as why:
        print(f"ok - the liar # SKIP {why} (scripts/setup installs what it needs)")
        return
    import victims  # pylint: disable=import-outside-toplevel
    everything = attacks.ALL | neighbours.ALL | thieves.ALL | relays.ALL
    if options.key:
        everything |= attacks.WITHOUT_KEY | thieves.WITHOUT_KEY
    if options.gate:
        everything = {name: attack for name, attack in everything.items() if attack in attacks.GATE}
        assert len(everything) == len(attacks.GATE), f"of the gate's attacks there are {list(everything)}"
    allowed = {}
    if options.other:
        everything = left_out(hosts, hosts.ALL | everything)
        allowed = hosts.DOCUMENTED if options.beside == "owner" else {}
        for sentence in {sentence for sentences in allowed.values() for sentence in sentences}:
            assert sentence in said, f"threats.md does not say: {sentence}"
    for name in options.without:
        assert name in everything, f"no attack is named '{name}'"
    try:
        attack_all(lambda: victims.Stage(*what[:4], owners, initiators), everything, allowed)
    finally:
        keeper.close()
        if far is not keeper:
            far.close()
        if process:
            process.shutdown()


heed()
if options.loopback and os.environ.get("LIAR_INSIDE") is None:
    enter()
elif options.loopback:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    try:
        main()
    finally:
        fabric = "/dev/shm/" + os.environ["ADVERB_LOOPBACK_FABRIC"]
        if os.path.exists(fabric):
            os.unlink(fabric)
else:
    main()
