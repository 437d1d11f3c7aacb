#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""liar.py DIRECTORY-OF-LOOPBACK LIBADVERB VICTIM [PATTERN] [--open]: a well-formed liar on the real wire (README.md).
Runs the attacks whose names contain PATTERN; with --open, of those that get in. Prints TAP."""

import os
import re
import subprocess
import sys
import tempfile
import time
import traceback

sys.dont_write_bytecode = True
OPEN = "--open" in sys.argv
LOOPBACK, LIBRARY, VICTIM, PATTERN = (*(os.path.abspath(a) for a in sys.argv[1:4]), *filter(lambda a: a != "--open",
                                      sys.argv[4:]), "")[:4]


def enter():
    """A network of its own, so that nobody else's broker is met, and the loopback device"""
    for network in (["unshare", "-n"], ["unshare", "-rn"]):
        up = subprocess.run([*network, "ip", "link", "set", "lo", "up"], capture_output=True, check=False)
        if up.returncode == 0:
            break
    else:
        print("ok - the liar # SKIP no network of its own can be had")
        return
    linked = subprocess.run(["ldd", VICTIM], capture_output=True, text=True, check=True).stdout
    runtime = re.findall(r"(\S*lib[at]san\.so\S*) \(", linked)
    options = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"  # Python itself leaks at its end
    os.environ.update({"LIAR_INSIDE": "1", "LD_LIBRARY_PATH": LOOPBACK,
                       "ADVERB_LOOPBACK_FABRIC": f"adverb-liar.{os.getpid()}",
                       **({"LD_PRELOAD": ":".join(runtime), "ASAN_OPTIONS": options} if runtime else {})})
    os.execvp(network[0], [*network, sys.executable, *sys.argv])


def main():
    try:
        import attacks  # pylint: disable=import-outside-toplevel
        import relays  # pylint: disable=import-outside-toplevel
        import thieves  # pylint: disable=import-outside-toplevel
    except ImportError as why:
        print(f"ok - the liar # SKIP {why} (scripts/setup installs what it needs)")
        return
    import victims  # pylint: disable=import-outside-toplevel
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    stage = None
    with tempfile.TemporaryDirectory() as scratch:
        try:
            for name, attack in (attacks.OPEN if OPEN else attacks.ALL | thieves.ALL | relays.ALL).items():
                if PATTERN not in name:
                    continue
                begun = time.monotonic()
                try:
                    if stage is None:
                        stage = victims.Stage(VICTIM, LIBRARY, LOOPBACK, scratch)
                        stage.open()
                    attack(stage)
                    print(f"ok - {name}", flush=True)
                except Exception as why:  # pylint: disable=broad-exception-caught # whatever it is, it did not hold
                    said = str(why) or traceback.extract_tb(why.__traceback__)[-1].line
                    print(f"not ok - {name}: {said}", flush=True)
                    print("\n".join("# " + line for line in traceback.format_exc().splitlines()), flush=True)
                    stage = stage and stage.close()  # others are not to meet what it has left
                print(f"# {time.monotonic() - begun:.1f} s", flush=True)
        finally:
            if stage:
                stage.close()
            fabric = "/dev/shm/" + os.environ["ADVERB_LOOPBACK_FABRIC"]
            if os.path.exists(fabric):
                os.unlink(fabric)


if os.environ.get("LIAR_INSIDE") is None:
    enter()
else:
    main()
