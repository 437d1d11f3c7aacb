#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""reload.py ADVERB-COMMAND LOOPBACK LIBADVERB MANY_QUEUES TIMES: many_queues in two processes, while its policy's file
is written anew so many times, by turns good and bad. Each change is counted by both processes before the next one
comes, so nothing here depends on how fast that is; a change that nobody hears of for a minute is a failure."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

COMMAND, LOOPBACK, LIBRARY, PROGRAM = sys.argv[1:5]
TIMES = int(sys.argv[5])
PATIENCE = 60.0
GROWTH_MAX = 8192  # KiB of each process, in the second half: the program itself has grown by then

PINNED = '{"name": "regions", "register": "pinned"}'


def policy(*rules, settings=""):
    return f'{{"version": 1, {settings}"rules": [{", ".join((PINNED, *rules))}]}}'


GOOD = [
    policy('{"name": "short", "match": {"length": {"max": "64B"}}, "steer": "unload"}'),
    policy('{"name": "all", "steer": "unload"}'),
    policy('{"name": "auto", "steer": "auto"}', settings='"recall_wait": "20ms", '),
    policy(),
    policy('{"name": "long", "match": {"length": {"min": "65B"}}, "steer": "unload"}', settings='"staging": "8MiB", '),
]
BAD = ['{"version": 1, "rules": [{"steer": "sideways"}]}', '{"version": 1, "rules": [', '', policy('{"name": "none"}')]

failures = 0


def judge(good, promise, why=""):
    global failures
    print(("ok" if good else "not ok") + " - " + promise, flush=True)
    if not good:
        failures += 1
        print(f"# {why}", flush=True)


def descendants(pid):
    out = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            out += descendants(int(child))
    return out


def counters(pid):
    done = subprocess.run([COMMAND, "stat", "--json", "-p", str(pid)], capture_output=True, text=True, check=False)
    return json.loads(done.stdout)["counters"] if done.returncode == 0 else {}


def heard(pid):
    c = counters(pid)
    return c.get("policy_reloads", 0) + c.get("policy_refusals", 0)


def resident(pid):
    return int(pathlib.Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])


def put(path, text, number):
    """As an editor does, or as a shell does."""
    if number % 2 == 0:
        path.write_text(text)
        return
    other = path.with_suffix(".new")
    other.write_text(text)
    other.rename(path)


def readable_again(path, refusals):
    """By nobody but its owner, as the log asks; until both processes have refused it others may write it."""
    text = GOOD[3] if path.read_text() != GOOD[3] else GOOD[1]
    other = path.with_suffix(".new")
    other.write_text(text)
    other.chmod(0o666)
    before = refusals()
    deadline = time.monotonic() + PATIENCE
    other.rename(path)
    while any(now == then for now, then in zip(refusals(), before)) and time.monotonic() < deadline:
        time.sleep(0.01)
    path.chmod(0o600)


def folder_anew(path, _):
    text = GOOD[0] if path.read_text() != GOOD[0] else GOOD[1]
    gone = path.parent.with_suffix(".gone")
    path.parent.rename(gone)
    path.parent.mkdir(mode=0o700)
    path.write_text(text)
    for file in gone.iterdir():
        if not (path.parent / file.name).exists():
            file.rename(path.parent / file.name)
        else:
            file.unlink()
    gone.rmdir()


def main():
    work = pathlib.Path(tempfile.mkdtemp(prefix="adverb-reload."))
    (work / "policies").mkdir(mode=0o700)
    path, stop = work / "policies" / "policy.json", work / "stop"
    path.write_text(GOOD[0])
    linked = subprocess.run(["ldd", PROGRAM], capture_output=True, text=True, check=True).stdout
    runtime = re.findall(r"(\S*lib[at]san\.so\S*) \(", linked)  # a sanitizer's comes first
    env = dict(os.environ, LD_LIBRARY_PATH=LOOPBACK, ADVERB_LOOPBACK_FABRIC=f"adverb-reload.{os.getpid()}",
               ADVERB_POLICY=str(path), ADVERB_STATS_FILE=str(work / "stats.%p"), LD_PRELOAD=":".join([*runtime, LIBRARY]))
    with open(work / "log", "w") as log:
        program = subprocess.Popen([PROGRAM, "--until", str(stop)], env=env, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE
        ends = []
        while time.monotonic() < deadline and program.poll() is None:
            ends = [p for p in descendants(program.pid) if counters(p).get("posts_steered", 0) > 0]
            if len(ends) == 2:
                break
            time.sleep(0.05)
        judge(len(ends) == 2, "both processes steer requests by the first policy")
        written, taken, size = 0, 0, {}
        while failures == 0 and written < TIMES and program.poll() is None:
            good = written % 3 != 2
            text = GOOD[(written + 1) % len(GOOD)] if good else BAD[written // 3 % len(BAD)]
            put(path, text, written)
            written += 1
            taken += good
            deadline = time.monotonic() + PATIENCE
            while any(heard(p) < written for p in ends) and time.monotonic() < deadline and program.poll() is None:
                time.sleep(0.01)
            if any(heard(p) != written for p in ends):
                judge(False, f"each change is heard of once: change {written}", str([heard(p) for p in ends]))
            if written == TIMES // 2:
                size = {p: resident(p) for p in ends}
        if failures == 0:
            last = [counters(p) for p in ends]
            for what, change in (("made readable again", readable_again), ("in a folder made anew", folder_anew)):
                before = [counters(p)["policy_reloads"] for p in ends]
                change(path, lambda: [counters(p)["policy_refusals"] for p in ends])
                deadline = time.monotonic() + PATIENCE
                while any(counters(p)["policy_reloads"] == n for p, n in zip(ends, before)) and time.monotonic() < deadline:
                    time.sleep(0.01)
                judge(all(counters(p)["policy_reloads"] > n for p, n in zip(ends, before)), f"a file {what} is taken")
            judge(written == TIMES, f"{TIMES} changes, each heard of once by both processes")
            judge(all(c["policy_reloads"] == taken for c in last), "the good ones are taken, and the bad ones are not",
                  str([(c["policy_reloads"], c["policy_refusals"]) for c in last]))
            if TIMES >= 200 and not runtime:  # fewer are over before that, and a sanitizer keeps what is freed
                grown = [resident(p) - size[p] for p in size]
                judge(len(grown) == 2 and all(g < GROWTH_MAX for g in grown), "nothing grows", f"{grown} KiB")
    finally:
        stop.touch()
    try:
        status = program.wait(timeout=2 * PATIENCE)
    except subprocess.TimeoutExpired:
        program.kill()
        status = "none: it hangs"
    judge(status == 0, "no request is lost, doubled or out of order meanwhile", f"many_queues: {status}")
    words = (work / "log").read_text()
    judge("sideways" in words and "stays" in words, "the log names what is wrong with a bad one", words[-2000:])
    shutil.rmtree(work)
    return 1 if failures else 0


sys.exit(main())
