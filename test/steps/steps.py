#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""steps.py DIRECTORY-OF-LOOPBACK LIBADVERB STEPS ROLE [--all] [--stopped SECONDS]: the initiator, the owner or the
broker is killed, and stopped for a second, at one step after the other (README.md). Prints TAP."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time

LOOPBACK, LIBRARY, PROGRAM = (os.path.abspath(a) for a in sys.argv[1:4])
ROLE = sys.argv[4]
ALL = "--all" in sys.argv[5:]
STOPPED = float(sys.argv[sys.argv.index("--stopped") + 1]) if "--stopped" in sys.argv else 1.0
COMMAND = os.path.join(os.path.dirname(LIBRARY), "tools/adverb")
PORT = 7772
SLOW = 5 if os.environ.get("ADVERB_SANITIZER") else 1
# What a step is: a call that connections and frames go by, or one of those by which threads wake each other.
KINDS = {"frames": "connect,accept,accept4,sendto,sendmsg,recvfrom,recvmsg,shutdown",
         "wake-ups": "read,write,epoll_pwait2"}
SAMPLE = {"frames": 6, "wake-ups": 2}  # steps of a role, unless all are wanted
# Stock's own timers for a peer that is dead (timeout 14, 7 retries), and what a link may add: 4 s.
DEAD_PEER = 10 * SLOW
STRANGER = 3  # seconds of silence behind a port, where nobody has been heard before
HONEST = 15 * SLOW + 2 * STOPPED  # a link, where nobody is dead


def until(condition, seconds):
    """What it answers at last: true, or what it was when the time was over"""
    end = time.monotonic() + seconds
    while not (answer := condition()) and time.monotonic() < end:
        time.sleep(0.005)
    return answer


def state(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def brokers():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            if words[1:2] == [b"broker"] and os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
                found.append(int(pid))
        except OSError:
            pass
    return found


class Programs:
    """What runs, and how"""

    def __init__(self, scratch):
        self.scratch = scratch
        self.fabric = f"adverb-steps.{os.getpid()}"
        policy = os.path.join(scratch, "policy.json")
        with open(policy, "w", encoding="utf-8") as file:
            json.dump({"version": 1, "link": {"port": PORT}, "rules": [{"register": "none"}],
                       "log": {"file": os.path.join(scratch, "log.%p")}}, file)
        runtime = re.findall(r"(\S*lib[at]san\.so\S*) \(", subprocess.run(
            ["ldd", PROGRAM], capture_output=True, text=True, check=True).stdout)
        self.variables = {"LD_LIBRARY_PATH": LOOPBACK, "LD_PRELOAD": ":".join([*runtime, LIBRARY]),
                          "ADVERB_LOOPBACK_FABRIC": self.fabric, "ADVERB_POLICY": policy}
        if os.environ.get("ADVERB_SANITIZER") == "asan":  # leaks cannot be looked for while others trace
            self.variables["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
        self.running = []

    def start(self, *words, inject=None, trace=None):
        """A process; with `inject` (signal, kind, step) it gets that signal at each of its threads' `step`th call of
        that kind; with `trace` (file, kind) it writes its calls there"""
        if inject or trace:
            calls = KINDS[(inject or trace)[1]]
            how = ["strace", "-f", "-qq", "-e", "signal=none", "-e", f"trace={calls}",
                   "-o", trace[0] if trace else "/dev/null", *(f"-E{k}={v}" for k, v in self.variables.items())]
            if inject:
                how += ["-e", f"inject={calls}:signal={inject[0]}:when={inject[2]}"]
            process = subprocess.Popen([*how, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       start_new_session=True)
        else:
            process = subprocess.Popen(words, env={**os.environ, **self.variables}, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.running.append(process)
        return process

    def owner(self, **how):
        path = os.path.join(self.scratch, f"socket.{time.monotonic_ns()}")
        process = self.start(PROGRAM, "owner", path, **how)
        # An injected end may come before it listens; a stop too, and who has asked for it sees to it.
        stops = how.get("inject", ("",))[0] == "SIGSTOP"
        until(lambda: os.path.exists(path) or process.poll() is not None or (stops and stopped_below(process)), HONEST)
        return process, path

    def initiator(self, path, **how):
        return self.start(PROGRAM, "initiator", path, **how)

    def end(self, process):
        for which in (signal.SIGCONT, signal.SIGKILL):
            try:
                os.killpg(process.pid, which)
            except ProcessLookupError:
                pass
        process.communicate()
        self.running.remove(process)

    def close(self):
        # Who loses its broker starts another, so that one ends last.
        for process in reversed(list(self.running)):
            self.end(process)
        path = "/dev/shm/" + self.fabric
        if os.path.exists(path):
            os.unlink(path)


def broker_by_hand(programs, **how):
    """Else a program would start one, which would be traced with it"""
    assert until(lambda: not brokers(), HONEST), "the broker of the programs before stays"
    return programs.start(COMMAND, "broker", "--user", "--port", str(PORT), **how)


def stopped_below(process):
    """The process of a trace, if it is stopped"""
    def is_stopped(pid):
        try:
            return all(state(task) in ("t", "T") for task in os.listdir(f"/proc/{pid}/task"))
        except OSError:
            return False

    for pid in children(process.pid):
        # A tracer stops it for a moment at each call, and lets it go on.
        if all(is_stopped(pid) or time.sleep(0.01) for _ in range(4)):
            return pid
    return None


def go_on(traced, over):
    """The process of a trace that is stopped goes on after a time, until `over`. As each of its threads comes to that
    step it is stopped again, and goes on at once; how often"""
    stops = 0
    end = time.monotonic() + 2 * HONEST
    while not over() and time.monotonic() < end:
        if pid := stopped_below(traced):
            time.sleep(STOPPED if stops == 0 else 0)
            try:
                os.kill(pid, signal.SIGCONT)
                stops += 1
            except ProcessLookupError:
                pass  # it was about to end
        time.sleep(0.01)
    return stops


def result(process, seconds):
    """What an initiator says of its requests; raises where it says nothing in time"""
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the initiator does not end within {seconds} s") from None
    lines = [line for line in out.splitlines() if line.startswith("{")]
    assert lines, f"the initiator ends with {process.returncode}: {errors.strip()[-300:]}"
    return json.loads(lines[-1])


def all_is_well(said):
    assert said["met"] and said["right"] and said["status"] == "success" and said["done"] == said["of"], said


def as_stock_says_of_the_dead(said):
    """All done before it died; or from some request on the queue pair's own error; never wrong bytes"""
    assert said["right"], said
    if said["met"] and said["done"] < said["of"]:
        assert said["status"] == "transport retry counter exceeded", said


def steps(programs, role, kind):
    """How many such calls a thread of that role makes at most when nothing happens"""
    trace = os.path.join(programs.scratch, "trace")
    traced = {"trace": (trace, kind)}
    broker = broker_by_hand(programs, **(traced if role == "broker" else {}))
    said = broker.stdout.readline()
    assert said.startswith("adverb broker: serving"), f"no broker: {said or broker.communicate()[1]}"
    owner, path = programs.owner(**(traced if role == "owner" else {}))
    all_is_well(result(programs.initiator(path, **(traced if role == "initiator" else {})), HONEST))
    programs.end(owner)
    programs.end(broker)
    counts = {}
    with open(trace, encoding="utf-8", errors="replace") as file:
        for line in file:
            counts[line.split()[0]] = counts.get(line.split()[0], 0) + 1
    return max(counts.values())


# Each of these answers whether it was stopped or killed at all: calls come and go with the order of threads.


def initiator_at(programs, at, owner):
    process = programs.initiator(owner[1], inject=at)
    if at[0] == "SIGSTOP":
        hit = go_on(process, lambda: process.poll() is not None) != 0
        all_is_well(result(process, HONEST))
    else:
        process.communicate(timeout=HONEST)
        hit = process.returncode == -signal.SIGKILL
    programs.running.remove(process)
    # The owner goes on for others.
    assert owner[0].poll() is None, f"the owner has ended: {owner[0].communicate()[1]}"
    other = programs.initiator(owner[1])
    all_is_well(result(other, HONEST))
    programs.running.remove(other)
    return hit


def owner_at(programs, at):
    hit = False
    owner, path = programs.owner(inject=at)
    if at[0] == "SIGSTOP":
        hit = go_on(owner, lambda: os.path.exists(path)) != 0
    process = programs.initiator(path)
    if at[0] == "SIGSTOP":
        hit = go_on(owner, lambda: process.poll() is not None) != 0 or hit
        all_is_well(result(process, HONEST))
    else:
        ended = lambda: owner.poll() is not None
        try:
            said = result(process, DEAD_PEER)
        except AssertionError as why:
            if f"bench: {path} failed" not in str(why) or not until(ended, HONEST):
                raise  # otherwise it died before there was anybody to meet
            hit = True
        else:
            as_stock_says_of_the_dead(said)
            # Its last steps come when the initiator has left.
            hit = until(ended, 1)
            if not hit:
                all_is_well(said)  # nobody died
    programs.running.remove(process)
    programs.end(owner)
    return hit


def broker_at(programs, at):
    how = at[0]
    broker = broker_by_hand(programs, inject=at)
    serving = lambda: select.select([broker.stdout], [], [], 0)[0] or broker.poll() is not None
    hit = go_on(broker, serving) != 0
    owner, path = programs.owner()
    process = programs.initiator(path)
    hit = go_on(broker, lambda: process.poll() is not None) != 0 or hit
    said = result(process, HONEST)
    if how == "SIGSTOP" and STOPPED > STRANGER and said["status"] == "remote access error" and said["done"] == 1:
        print(f"# a stranger's: {said}", flush=True)  # README.md
    else:
        all_is_well(said)
    hit = hit or broker.poll() is not None
    programs.running.remove(process)
    programs.end(owner)
    programs.end(broker)
    return hit


def run(programs, how, kind):
    last = steps(programs, ROLE, kind)
    every = 1 if ALL else max(1, last // SAMPLE[kind])
    chosen = range(1, last + 1, every)
    failed = []
    hits = 0

    def lasting():
        if ROLE != "broker":
            broker_by_hand(programs).stdout.readline()
        return programs.owner() if ROLE == "initiator" else None

    owner = lasting()
    for step in chosen:
        begun = time.monotonic()
        at = (how, kind, step)
        try:
            if ROLE == "initiator":
                hits += initiator_at(programs, at, owner)
            else:
                hits += (owner_at if ROLE == "owner" else broker_at)(programs, at)
        except (AssertionError, OSError, subprocess.TimeoutExpired) as why:
            failed.append(f"at {kind} {step}: {why or type(why).__name__}")
            print(f"# {how} of the {ROLE} at {kind} {step} of {last}, after {time.monotonic() - begun:.1f} s: {why}",
                  flush=True)
            programs.close()
            owner = lasting()
    programs.close()
    print(f"# {how} of the {ROLE} at {kind}: {len(chosen)} of {last} steps, {hits} of them met", flush=True)
    # On a busy machine the order is another than when the steps were counted.
    if 3 * hits < len(chosen):
        failed.append(f"{kind} were met at {hits} of {len(chosen)} steps only")
    return failed


PROMISES = {
    ("initiator", "SIGKILL"): "an initiator is killed at any step, and its owner serves the next",
    ("initiator", "SIGSTOP"): "an initiator is stopped at any step, and its requests are right",
    ("owner", "SIGKILL"): "an owner is killed at any step, and requests fail as of a dead peer",
    ("owner", "SIGSTOP"): "an owner is stopped at any step, and requests wait and are right",
    ("broker", "SIGKILL"): "a broker is killed at any step, and requests are right",
    ("broker", "SIGSTOP"): "a broker is stopped at any step, and requests are right",
}


def main():
    if os.environ.get("STEPS_INSIDE") is None:
        for network in (["unshare", "-n"], ["unshare", "-rn"]):
            if subprocess.run([*network, "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode == 0:
                os.environ["STEPS_INSIDE"] = "1"
                os.execvp(network[0], [*network, sys.executable, *sys.argv])
        print("ok - steps # SKIP no network of its own can be had")
        return
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    if subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode != 0:
        print("ok - steps # SKIP processes may not be traced here")
        return
    for how in ("SIGKILL", "SIGSTOP"):
        # A broker that one of the programs has started may be about to write its log there.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            programs = Programs(scratch)
            try:
                failed = [why for kind in KINDS for why in run(programs, how, kind)]
            except (AssertionError, OSError) as why:
                failed = [str(why)]
            finally:
                programs.close()
            name = PROMISES[ROLE, how]
            print(f"not ok - {name}: {len(failed)}, {failed[0]}" if failed else f"ok - {name}", flush=True)


main()
