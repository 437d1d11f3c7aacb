# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Who has the victims in hand: starts them, passes on what they are told and say, and looks at them as only their
user may. Of the same user as the liar it is an object like others; else a process of the victims' user, and on
another host the one that is run there:

    ADVERB_LIAR_SECRET=... keeper.py ADDRESS PORT USER"""

import ctypes
import json
import multiprocessing
import os
import pwd
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
from multiprocessing.managers import BaseManager


class Keeper:
    """`where`: the words that name the victims' device and address to them"""

    def __init__(self, victim, library, loopback, scratch, where):
        self.words, self.library, self.loopback = [victim, *where], library, loopback
        self.folder = None if scratch else tempfile.TemporaryDirectory()
        self.scratch = scratch or self.folder.name
        self.command = os.path.join(os.path.dirname(library), "tools/adverb")
        self.programs, self.unread = {}, {}
        linked = subprocess.run(["ldd", victim], capture_output=True, text=True, check=True).stdout
        self.runtime = re.findall(r"(\S*lib[at]san\.so\S*) \(", linked)

    def path(self, name):
        return os.path.join(self.scratch, name)

    def write(self, name, text):
        """A file that nobody else may read; where it is"""
        with open(self.path(name + ".new"), "w", encoding="utf-8") as file:
            os.chmod(file.fileno(), 0o600)
            file.write(text)
        os.replace(self.path(name + ".new"), self.path(name))  # others are about to read it
        return self.path(name)

    def start(self, port, link):
        """A program whose policy says so of links: its number"""
        # Small regions are the device's own.
        policy = self.write(f"policy.{port}.json", json.dumps(
            {"version": 1, "link": {"port": port, "broker": "process", "hello_timeout": "1000ms", **link},
             "log": {"file": self.path("log.%p")}, "rules": [{"match": {"max_size": "8KiB"}, "register": "pinned"}, {"register": "none"}]}))
        environment = {**os.environ, "LD_PRELOAD": ":".join([*self.runtime, self.library]), "ADVERB_POLICY": policy}
        if self.loopback:
            environment["LD_LIBRARY_PATH"] = self.loopback
        program = subprocess.Popen(self.words, env=environment, bufsize=0, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE)
        self.programs[program.pid], self.unread[program.pid] = program, b""
        return program.pid

    def ended(self, pid):
        return AssertionError(f"a program has ended with {self.programs[pid].wait(10)}")

    def tell(self, pid, line):
        try:
            self.programs[pid].stdin.write(line.encode())
        except BrokenPipeError:
            raise self.ended(pid) from None

    def hear(self, pid, seconds):
        """What it answers, or None"""
        out = self.programs[pid].stdout
        while b"\n" not in self.unread[pid]:
            if not select.select([out], [], [], seconds)[0]:
                return None
            more = out.read(4096)
            if not more:
                raise self.ended(pid)
            self.unread[pid] += more
        line, self.unread[pid] = self.unread[pid].split(b"\n", 1)
        return json.loads(line)

    def counters(self, pid):
        done = subprocess.run([self.command, "stat", "-p", str(pid), "--json"], capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["counters"]

    def peers(self, pid):
        """What it tells of its peers"""
        done = subprocess.run([self.command, "stat", "-p", str(pid), "--peers", "--json"], capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["peers"]

    def descriptors(self, pid):
        return len(os.listdir(f"/proc/{pid}/fd"))

    def resident(self, pid):
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            return 1024 * int(re.search(r"VmRSS:\s+(\d+)", file.read())[1])

    def log(self, pid):
        try:
            with open(self.path(f"log.{pid}"), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def limit_descriptors(self, pid, most):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))

    def broker(self, port):
        """Of the host: its process, or None"""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
                if (words[1:2] == [b"broker"] and str(port).encode() in words and
                        os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")):
                    return int(pid)
            except OSError:
                pass
        return None

    def end(self, pid):
        program = self.programs.pop(pid)
        program.kill()
        program.wait()
        program.stdin.close()
        program.stdout.close()

    def close(self):
        if self.folder:
            self.folder.cleanup()


class Keepers(BaseManager):
    """The process of the victims' user that a keeper is in"""


Keepers.register("Keeper", Keeper)


def become(user):
    """For good"""
    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setresgid(*[entry.pw_gid] * 3)
    os.setresuid(*[entry.pw_uid] * 3)


def serve(user):
    become(user)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG; the victims end with their stdin


def keep(user, *what):
    """A keeper of that user, and the process that has to be held on to"""
    keepers = Keepers(f"\0adverb.liar.{os.getpid()}", os.urandom(32), ctx=multiprocessing.get_context("fork"))
    keepers.start(serve, (user,))
    return keepers.Keeper(*what), keepers


def reach(address, port, secret, *what):
    """The same of a keeper on another host"""
    keepers = Keepers((address, port), secret)
    keepers.connect()
    return keepers.Keeper(*what), keepers


if __name__ == "__main__":
    serve(sys.argv[3])
    Keepers((sys.argv[1], int(sys.argv[2])), os.environ.pop("ADVERB_LIAR_SECRET").encode()).get_server().serve_forever()
