# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The programs that are attacked: an owner of secrets and an honest initiator that goes on asking, both under
adverb, and what is to be seen of them from outside."""

import collections
import os
import re
import time

import options
from keeper import Keeper
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

    def __init__(self, stage, port, keeper):
        self.stage, self.keeper = stage, keeper
        self.pid = self.keeper.start(port, stage.demands(keeper))
        stage.running.append(self)

    def tell(self, *words):
        self.keeper.tell(self.pid, " ".join(map(str, words)) + "\n")

    def hear_now(self, seconds=0):
        """Its answer, or None"""
        return self.keeper.hear(self.pid, seconds)

    def hear(self, seconds=60):
        answer = self.hear_now(seconds * SLOW)
        assert answer is not None, f"a program does not answer within {seconds} s"
        return answer

    def do(self, *words):
        self.tell(*words)
        return self.hear()

    def qp(self, domain=SECRETS, rights=ALL):
        return self.do("qp", domain, rights)

    def connect(self, qp, peer):
        """To another's queue pair, or the liar's"""
        number, gid = (peer["qpn"], peer["gid"]) if isinstance(peer, dict) else (peer.number, peer.device.id.hex())
        self.do("connect", qp["qp"], number, gid)

    def region(self, domain, size, rights, seed):
        return self.do("region", domain, size, rights, seed)

    def counters(self):
        return self.keeper.counters(self.pid)

    def descriptors(self):
        return self.keeper.descriptors(self.pid)

    def resident(self):
        return self.keeper.resident(self.pid)

    def log(self):
        return self.keeper.log(self.pid)

    def end(self):
        self.stage.running.remove(self)
        self.keeper.end(self.pid)


class Stage:
    """The owner with its secret and canaries, and the initiator; `PORT` is the host's. `keeper`: of the owner's host,
    `asks`: of the initiators', which may be another"""
    PORT = 7781
    SECRET = 1 << 16
    link = {}  # what else the policy says of links

    def __init__(self, victim, library, loopback, scratch, keeper=None, asks=None):
        self.keeper = keeper or Keeper(victim, library, loopback, scratch, (options.device, str(options.gid)))
        self.asks = asks or self.keeper
        self.running, self.places = [], {}
        self.seed = int.from_bytes(os.urandom(7), "little")

    def demands(self, keeper):
        """All that the kernel would vouch for, too, has to be proven, but at level user"""
        if options.key:
            return {"key_file": keeper.write("key", options.key.decode()), **self.link}
        return {"proof": "others" if options.level == "user" else "all", **self.link}

    def open(self):
        self.owner = Program(self, self.PORT, self.keeper)
        self.honest = Program(self, self.PORT, self.asks)
        # What is secret, and its neighbours: that nobody may reach, the device's own, and of other domains.
        self.secret = self.owner.region(SECRETS, self.SECRET, ALL, self.seed)
        self.scratch_region = self.owner.region(SECRETS, 1 << 14, ALL, 0)
        self.unreachable = self.owner.region(SECRETS, 1 << 14, LOCAL_WRITE, self.seed + 1)
        self.pinned = self.owner.region(SECRETS, 4096, ALL, self.seed + 2)
        self.others = self.owner.region(OTHERS, 1 << 14, ALL, self.seed + 3)
        self.read_only = self.owner.region(LIARS, 1 << 14, REMOTE_READ, self.seed + 4)
        self.liars = self.owner.region(LIARS, 1 << 14, ALL, 0)
        self.target, self.source = self.owner.qp(), self.honest.qp()
        self.owner.connect(self.target, self.source)
        self.honest.connect(self.source, self.target)
        alone = self.ask(self.honest, self.source, options.rounds)
        assert alone["rounds"] == options.rounds and alone["wrong"] == alone["failed"] == 0, alone
        self.median = alone["median"]
        self.proven = self.owner.counters()["qps_proven"]
        self.words = {word(self.seed + region, n) for region in range(4) for n in range(self.SECRET // 8 if not region
                                                                                     else 2048 if region != 2 else 512)}

    def ask(self, program, qp, count):
        self.tell_to_ask(program, qp, count)
        return program.hear(90)

    def tell_to_ask(self, program, qp, count):
        place = 64 * self.places.setdefault(program, len(self.places) % 256)  # each its own
        program.tell("ask", qp["qp"], count, self.SECRET, self.seed, self.secret["address"], self.secret["key"],
                     self.scratch_region["address"] + place, self.scratch_region["key"])

    def broker(self):
        return self.keeper.broker(self.PORT)

    def broker_counters(self):
        return self.keeper.counters(self.broker())

    def watch(self):
        return Watch(self)

    def close(self):
        for program in list(self.running):
            program.end()
        for keeper in {id(k): k for k in (self.keeper, self.asks)}.values():
            until(lambda k=keeper: not k.broker(self.PORT), 5)  # it stays for a moment


class Watch:
    """What an attack may not do, whatever it is: `with` it the honest initiator is at work"""

    def __init__(self, stage):
        self.stage, self.count, self.rss = stage, {}, RSS
        self.programs = {"owner": stage.owner, "honest initiator": stage.honest}

    def __enter__(self):
        stage = self.stage
        heard.clear()
        self.begun = time.monotonic()
        self.logged = {name: len(program.log()) for name, program in self.programs.items()}
        self.descriptors, self.resident = stage.owner.descriptors(), stage.owner.resident()
        self.before = stage.owner.counters()
        stage.tell_to_ask(stage.honest, stage.source, 0)
        return self

    def await_rounds(self, more=3):
        """Until the honest initiator was served so many times more, while the liar still has all that it has got"""
        def done():
            return self.stage.honest.do("rounds")

        least = done()["rounds"] + more
        assert until(lambda: (said := done())["failed"] or said["rounds"] >= least, options.hangs), \
            "the honest initiator is not served any more"

    def counted(self, name):
        return self.stage.owner.counters()[name] - self.before[name]

    def expects(self, name, least=1, most=None):
        """The owner counts so many more; not at once, perhaps"""
        count = until(lambda: (c := self.counted(name)) >= least and (c,), 5, 0.02)
        assert count, f"{name} has grown by {self.counted(name)}, not by {least}"
        assert most is None or count[0] <= most, f"{name} has grown by {count[0]}, by more than {most}"

    def __exit__(self, kind, why, trace):
        stage = self.stage
        try:
            if not kind:
                self.await_rounds()
        finally:
            for link in list(Link.living):
                link.close()
        stage.honest.tell("check")  # ends the asking, too
        took = stage.honest.hear(80)
        stage.honest.hear()
        if kind:
            return
        assert took["wrong"] == 0 and took["failed"] == 0, f"the honest initiator is harmed: {took}"
        assert took["rounds"] > 0, "the honest initiator was never served"
        changed = stage.owner.do("check")["changed"]
        assert changed == -1, f"region {changed} of the owner is changed"
        assert not (lost := self.found()), f"{lost} words of the secrets are told"
        assert until(lambda: stage.owner.descriptors() <= self.descriptors, options.hangs if options.gate else 12, 0.05), \
            f"the owner had {self.descriptors} descriptors and has {stage.owner.descriptors()}"
        if not options.gate:
            self.judge_by_the_clock(took)

    def judge_by_the_clock(self, took):
        """How long the honest initiator waited, what memory is left and how often lines were logged"""
        stage = self.stage
        print(f"# the honest initiator's median: {took['median']} us, alone {stage.median}", flush=True)
        limit = SLOW * (20 * stage.median + 3000)
        assert took["median"] < limit, f"the honest initiator takes {took['median']} us, alone {stage.median}"
        assert took["worst"] < 3e6 * SLOW, f"the honest initiator waited {took['worst'] / 1e6:.1f} s"
        grown = stage.owner.resident() - self.resident
        # A sanitizer keeps for a while what was freed.
        assert grown < self.rss or os.environ.get("ADVERB_SANITIZER"), f"the owner has grown by {grown >> 10} KiB"
        for name in self.programs:
            assert not (repeated := self.repeated(name)), f"the {name} logs again and again: {repeated}"

    def repeated(self, name):
        """What it has logged more often than once in five seconds, whatever the numbers in it"""
        lines = self.programs[name].log()[self.logged[name]:].splitlines()
        said = collections.Counter(re.sub(r"\d+", "N", line) for line in lines)
        most = 1 + (time.monotonic() - self.begun) // 5
        return {line: count for line, count in said.items() if count > most}

    def found(self):
        """How many words of what is secret were heard, wherever in a message"""
        return sum(message[at:at + 8] in self.stage.words for message in heard for at in range(len(message) - 7))
