# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Programs of bench_link on the loopback device of this network, stock or under adverb, and what the kernel says of
processes."""

import glob
import json
import os
import subprocess
import time


def until(condition, seconds, pause=0.005):
    """What it answers at last: true, or what it was when the time was over"""
    end = time.monotonic() + seconds
    while not (answer := condition()) and time.monotonic() < end:
        time.sleep(pause)
    return answer


def listens(port):
    """Whether somebody does, in this network"""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as file:
            if any(f":{port:04X} " in line and line.split()[3] == "0A" for line in file):
                return True
    return False


def broker_of(port):
    """The process number of the broker that serves this port of this network, or None"""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            if (words[1:2] == [b"broker"] and str(port).encode() in words and
                    os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")):
                return int(pid)
        except OSError:
            pass  # it has ended meanwhile
    return None


def threads(pid):
    """{number: (name, times that it went to sleep or was made to)} of a process that runs"""
    found = {}
    for task in glob.glob(f"/proc/{pid}/task/*"):
        try:
            with open(task + "/status", encoding="utf-8") as file:
                status = dict(line.split(":", 1) for line in file)
        except OSError:
            continue  # it has ended meanwhile
        found[int(os.path.basename(task))] = (
            status["Name"].strip(), int(status["voluntary_ctxt_switches"]) + int(status["nonvoluntary_ctxt_switches"]))
    if not found:
        raise RuntimeError(f"process {pid} has no threads: it has ended")
    return found


class Programs:
    """One that serves and any number that ask, all of one kind"""
    next_port = 19800
    LINK_PORT = 7783

    def __init__(self, build, scratch, adverb, **link):
        self.program = os.path.join(build, "test/bench/bench_link")
        self.environment, self.running = dict(os.environ), []
        if adverb:
            policy = os.path.join(scratch, "policy.json")
            with open(policy, "w", encoding="utf-8") as file:
                # As between two hosts: here the kernel would vouch for who asks, and nothing would be proven.
                json.dump({"version": 1, "link": {"port": self.LINK_PORT, "proof": "all", **link},
                           "rules": [{"register": "none"}]}, file)
            self.environment |= {"LD_PRELOAD": os.path.join(build, "preload/libadverb.so"), "ADVERB_POLICY": policy}

    def __enter__(self):
        Programs.next_port += 1
        self.port = Programs.next_port
        self.owner = self.begin("serve", self.port, "stay")
        assert until(lambda: listens(self.port), 60), "the owner does not listen"
        return self

    def begin(self, *words):
        program = subprocess.Popen([self.program, *map(str, words)], env=self.environment, text=True, bufsize=1,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.running.append(program)
        return program

    def broker(self):
        """The process number of its broker, which adverb has started"""
        pid = until(lambda: broker_of(self.LINK_PORT), 60)
        if pid is None:
            raise RuntimeError("no broker serves these programs")
        return pid

    def ask(self, count, *more):
        """A program that asks on so many queue pairs"""
        return self.begin("ask", "127.0.0.1", self.port, count, *more)

    def end(self, program):
        self.running.remove(program)
        program.kill()
        program.communicate()

    def __exit__(self, *_):
        for program in list(self.running):
            self.end(program)
        until(lambda: broker_of(self.LINK_PORT) is None, 60)  # it stays for a moment


def answers(program, count):
    """[(milliseconds of the first request, of the second)] of the next queue pairs of who asks"""
    lines = [program.stdout.readline().split() for _ in range(count)]
    assert all(len(line) == 3 for line in lines), "who asks has ended early"
    return [(float(first), float(second)) for _, first, second in lines]
