# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The programs that are attacked: an owner of secrets and an honest initiator that goes on asking, both under
adverb, and what is to be seen of them from outside."""

import json
import os
import re
import select
import subprocess
import time

import protocol as p
from peer import SLOW, Link, heard, until

LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, ATOMIC = 1, 2, 4, 8
ALL = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | ATOMIC
SECRETS, OTHERS, LIARS = 0, 1, 2  # protection domains of the owner
RSS = 16 << 20  # bytes that an attack may leave behind, in caches and pools


def word(seed, n):
    most = (1 << 64) - 1
    z = (seed + (n + 1) * 0x9E3779B97F4A7C15) & most
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & most
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & most
    return (z ^ (z >> 31)).to_bytes(8, "little")


class Program:
    """A victim process; what it is told is answered by a line of JSON"""

    def __init__(self, stage, port):
        self.stage = stage
        self.process = subprocess.Popen([stage.victim], env=stage.environment(port), bufsize=0,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid, self.unread = self.process.pid, b""
        stage.running.append(self)

    def tell(self, *words):
        try:
            self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        except BrokenPipeError:
            raise AssertionError(f"a program has ended with {self.process.wait(10)}") from None

    def hear_now(self, seconds=0):
        """Its answer, or None"""
        end = time.monotonic() + seconds
        while b"\n" not in self.unread:
            if not select.select([self.process.stdout], [], [], max(end - time.monotonic(), 0))[0]:
                return None
            more = self.process.stdout.read(4096)
            if not more:
                raise AssertionError(f"a program has ended with {self.process.wait(10)}")
            self.unread += more
        line, self.unread = self.unread.split(b"\n", 1)
        return json.loads(line)

    def hear(self, seconds=30):
        answer = self.hear_now(seconds * SLOW)
        assert answer is not None, f"a program does not answer within {seconds} s"
        return answer

    def do(self, *words):
        self.tell(*words)
        return self.hear()

    def qp(self, domain=SECRETS, rights=ALL):
        return self.do("qp", domain, rights)

    def connect(self, qp, number):
        self.do("connect", qp["qp"], number)

    def region(self, domain, size, rights, seed):
        return self.do("region", domain, size, rights, seed)

    def counters(self):
        done = subprocess.run([self.stage.command, "stat", "-p", str(self.pid), "--json"], capture_output=True,
                              text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["counters"]

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def resident(self):
        with open(f"/proc/{self.pid}/status", encoding="utf-8") as file:
            return 1024 * int(re.search(r"VmRSS:\s+(\d+)", file.read())[1])

    def log(self):
        try:
            with open(self.stage.path(f"log.{self.pid}"), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def end(self):
        self.stage.running.remove(self)
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Stage:
    """The owner with its secret and canaries, and the initiator; `PORT` is the host's"""
    PORT = 7781
    SECRET = 1 << 16

    def __init__(self, victim, library, loopback, scratch):
        self.victim, self.library, self.loopback, self.scratch = victim, library, loopback, scratch
        self.command = os.path.join(os.path.dirname(library), "tools/adverb")
        self.running, self.places = [], {}
        self.seed = int.from_bytes(os.urandom(7), "little")
        linked = subprocess.run(["ldd", victim], capture_output=True, text=True, check=True).stdout
        self.runtime = re.findall(r"(\S*lib[at]san\.so\S*) \(", linked)

    def path(self, name):
        return os.path.join(self.scratch, name)

    def environment(self, port):
        policy = self.path(f"policy.{port}.json")
        with open(policy + ".new", "w", encoding="utf-8") as file:
            # All that the kernel would vouch for, too, has to be proven; small regions are the device's own.
            json.dump({"version": 1, "link": {"port": port, "proof": "all", "hello_timeout": "1000ms"},
                       "log": {"file": self.path("log.%p")},
                       "rules": [{"match": {"max_size": "8KiB"}, "register": "pinned"}, {"register": "none"}]}, file)
        os.replace(policy + ".new", policy)  # others are about to read it
        preload = [*self.runtime, self.library]
        return {**os.environ, "LD_LIBRARY_PATH": self.loopback, "LD_PRELOAD": ":".join(preload),
                "ADVERB_POLICY": policy}

    def open(self):
        self.owner = Program(self, self.PORT)
        self.honest = Program(self, self.PORT)
        # What is secret, and its neighbours: that nobody may reach, the device's own, and of other domains.
        self.secret = self.owner.region(SECRETS, self.SECRET, ALL, self.seed)
        self.scratch_region = self.owner.region(SECRETS, 1 << 14, ALL, 0)
        self.unreachable = self.owner.region(SECRETS, 1 << 14, LOCAL_WRITE, self.seed + 1)
        self.pinned = self.owner.region(SECRETS, 4096, ALL, self.seed + 2)
        self.others = self.owner.region(OTHERS, 1 << 14, ALL, self.seed + 3)
        self.read_only = self.owner.region(LIARS, 1 << 14, REMOTE_READ, self.seed + 4)
        self.liars = self.owner.region(LIARS, 1 << 14, ALL, 0)
        self.target, self.source = self.owner.qp(), self.honest.qp()
        self.owner.connect(self.target, self.source["qpn"])
        self.honest.connect(self.source, self.target["qpn"])
        alone = self.ask(self.honest, self.source, 400)
        assert alone["rounds"] == 400 and alone["wrong"] == alone["failed"] == 0, alone
        self.median = alone["median"]
        self.words = {word(self.seed + region, n) for region in range(4) for n in range(self.SECRET // 8 if not region
                                                                                     else 2048 if region != 2 else 512)}

    def ask(self, program, qp, count):
        self.tell_to_ask(program, qp, count)
        return program.hear(90)

    def tell_to_ask(self, program, qp, count):
        place = 64 * self.places.setdefault(program.pid, len(self.places) % 256)  # each its own
        program.tell("ask", qp["qp"], count, self.SECRET, self.seed, self.secret["address"], self.secret["key"],
                     self.scratch_region["address"] + place, self.scratch_region["key"])

    def broker(self):
        """Of the host: its process, or None"""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
                if (words[1:2] == [b"broker"] and str(self.PORT).encode() in words and
                        os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")):
                    return int(pid)
            except OSError:
                pass
        return None

    def broker_counters(self):
        done = subprocess.run([self.command, "stat", "-p", str(self.broker()), "--json"], capture_output=True,
                              text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["counters"]

    def watch(self):
        return Watch(self)

    def close(self):
        for program in list(self.running):
            program.end()
        until(lambda: not self.broker(), 5)  # it stays for a moment


class Watch:
    """What an attack may not do, whatever it is: `with` it the honest initiator is at work"""

    def __init__(self, stage):
        self.stage, self.count, self.rss = stage, {}, RSS

    def __enter__(self):
        stage = self.stage
        heard.clear()
        self.descriptors, self.resident = stage.owner.descriptors(), stage.owner.resident()
        self.before = stage.owner.counters()
        stage.tell_to_ask(stage.honest, stage.source, 0)
        return self

    def counted(self, name):
        return self.stage.owner.counters()[name] - self.before[name]

    def expects(self, name, least=1, most=None):
        """The owner counts so many more; not at once, perhaps"""
        count = until(lambda: (c := self.counted(name)) >= least and (c,), 5, 0.02)
        assert count, f"{name} has grown by {self.counted(name)}, not by {least}"
        assert most is None or count[0] <= most, f"{name} has grown by {count[0]}, by more than {most}"

    def __exit__(self, kind, why, trace):
        stage = self.stage
        for link in list(Link.living):
            link.close()
        stage.honest.tell("check")  # ends the asking, too
        took = stage.honest.hear(80)
        stage.honest.hear()
        if kind:
            return
        assert took["wrong"] == 0 and took["failed"] == 0, f"the honest initiator is harmed: {took}"
        assert took["rounds"] > 0, "the honest initiator was never served"
        limit = SLOW * (20 * stage.median + 3000)
        assert took["median"] < limit, f"the honest initiator takes {took['median']} us, alone {stage.median}"
        assert took["worst"] < 3e6 * SLOW, f"the honest initiator waited {took['worst'] / 1e6:.1f} s"
        changed = stage.owner.do("check")["changed"]
        assert changed == -1, f"region {changed} of the owner is changed"
        assert not (lost := self.found()), f"{lost} words of the secrets are told"
        assert until(lambda: stage.owner.descriptors() <= self.descriptors, 12, 0.05), \
            f"the owner had {self.descriptors} descriptors and has {stage.owner.descriptors()}"
        grown = stage.owner.resident() - self.resident
        # A sanitizer keeps for a while what was freed.
        assert grown < self.rss or os.environ.get("ADVERB_SANITIZER"), f"the owner has grown by {grown >> 10} KiB"

    def found(self):
        """How many words of what is secret were heard, wherever in a message"""
        return sum(message[at:at + 8] in self.stage.words for message in heard for at in range(len(message) - 7))
