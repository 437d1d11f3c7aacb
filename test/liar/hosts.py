# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What takes two hosts: the liar is on one of them, beside the owner or beside the honest initiator, and speaks for
queue pairs of the other. And what of the other attacks is left out there, as it has no meaning."""

import os
import pwd

import options
import protocol as p
from attacks import GOOD, HONEST, MINE, device, pair, peer, steal
from peer import Link, Queue
from victims import SECRETS, Program


class Far:
    """An initiator on the host where the liar is not, whose queue pair has asked nothing yet, and its owner's"""

    def __init__(self, stage):
        self.stage = stage
        self.program = Program(stage, stage.PORT, stage.keeper if options.beside == "initiator" else stage.asks)
        self.theirs, self.mine = stage.owner.qp(), self.program.qp()

    def connect(self):
        self.stage.owner.connect(self.theirs, self.mine)
        self.program.connect(self.mine, self.theirs)

    def bind(self, link, **other):
        """The liar's claim to be that initiator"""
        return link.bind(self.mine["qpn"], HONEST, self.theirs["qpn"], **{"sgid": device().other.id} | other)

    def is_served(self):
        took = self.stage.ask(self.program, self.mine, 3)
        assert took["rounds"] == 3 and took["wrong"] == took["failed"] == 0, f"who was lied about is harmed: {took}"


def companion_goes_there(stage):
    """Numbers bind it; the companion is one to that queue pair's host, so nothing of the liar's comes over it"""
    with stage.watch() as watch:
        far = Far(stage)
        far.connect()
        link = Link(device(), stage.PORT, far.theirs["qpn"])
        ack = far.bind(link)
        assert ack.answer == p.OK and ack.proof == 1, ack
        queue = link.companion(HONEST, opens=False)
        assert queue.send(link.companions[HONEST][2].nonce) != GOOD, "the companion goes to who asked for it"
        assert queue.message(0.1) is None, "the companion says something to who asked for it"
        assert link.claim(HONEST, stage.secret["key"]).answer == p.OK
        ack = link.prove(HONEST, link.proof(HONEST)[0])
        assert (ack.answer, ack.mac) == (p.NOT_THERE, bytes(32)), ack
        # One that names a queue pair of somebody there who has no part in it.
        named = stage.source["qpn"] if options.beside == "owner" else stage.target["qpn"]
        assert link.companion(HONEST, opens=False, qpn=named)
        far.is_served()
        watch.expects("requests_unbound", 0, 0)
        far.program.end()


def first_from_elsewhere(stage):
    """A client of the secret's own domain could write the slot, but is not where that queue pair's peer is. Before
    that one has proven anything, and after it"""
    with stage.watch() as watch:
        far = Far(stage)
        far.connect()
        link = peer(stage, SECRETS)
        ack = far.bind(link)
        assert ack.answer == p.OK and ack.proof == 1, ack
        link.companions[HONEST] = link.companions[MINE]
        mine = link.identity
        for refused in (2, 4):
            for identity in (mine, p.KeyPair()):
                link.identity = identity
                assert link.claim(HONEST, stage.secret["key"]).answer == p.OK
                assert link.fill(HONEST, link.own) == GOOD
                ack = link.prove(HONEST, link.proof(HONEST)[0])
                got = steal(link.queue, link.handles[HONEST], HONEST, stage)
                assert ack.answer == p.REFUSED and ack.mac == bytes(32) and got == [p.NAK] * 3, \
                    f"a proof from another host is answered by {ack.answer}, and what it asks for by {got}"
            watch.expects("auth_failures", refused, refused)
            far.is_served()
            # The liar's own; beside the owner the kernel vouches for it.
            proven = 1 if options.level == "user" and options.beside == "initiator" else 2
            watch.expects("qps_proven", proven, proven)
        far.program.end()


def numbers_alike(stage):
    """Devices number queue pairs alike: the liar has one of the very number that the other's has on its host"""
    with stage.watch():
        far = Far(stage)
        mine = Queue(device())
        for _ in range(20_000):  # the one may be thousands behind, as attacks before this one made many
            if mine.number < far.mine["qpn"]:
                mine.close()  # soft-RoCE gives its number to nobody until all others have been used
                mine = Queue(device())
            elif mine.number > far.mine["qpn"]:
                far.mine = far.program.qp()
        assert mine.number == far.mine["qpn"], f"number {mine.number} here and {far.mine['qpn']} there never meet"
        far.connect()
        mine.connect(far.theirs["qpn"])
        link = Link(device(), stage.PORT, far.theirs["qpn"])
        ack = far.bind(link, sgid=device().id)
        assert ack.answer == p.MISMATCH and ack.remote_handle == 0, f"a number on another host is bound: {ack}"
        assert far.bind(link).answer == p.OK
        assert link.companion(HONEST, opens=False)
        assert link.claim(HONEST, stage.secret["key"]).answer == p.OK
        assert link.fill(HONEST, mine) != GOOD, "a slot is written from another host than its queue pair's peer's"
        ack = link.prove(HONEST, link.proof(HONEST)[0])
        assert (ack.answer, ack.mac) == (p.NOT_THERE, bytes(32)), ack
        far.is_served()
        far.program.end()
        mine.close()


def user_of_the_same_number(stage):
    """The kernel's word is about users of its own host: who has their number, or root's, on another is a stranger"""
    assert os.geteuid() in (0, pwd.getpwnam(options.victims).pw_uid)
    with stage.watch() as watch:
        theirs, mine = pair(stage, SECRETS)
        link = Link(device(), stage.PORT, theirs["qpn"])
        ack = link.bind(mine.number, MINE)
        assert ack.answer == p.OK and ack.proof == 1, f"the kernel vouches for a user of another host: {ack}"
        queue = link.companion(MINE)
        assert steal(queue, link.handles[MINE], MINE, stage) == [p.NAK] * 3
        watch.expects("requests_unbound", 3, 3)
        watch.expects("qps_proven", 0, 0)
        mine.close()


ALL = {
    "a companion for a queue pair of another host goes there, and not to who asks": companion_goes_there,
    "who is on another host than a queue pair's peer does not prove it, were he the first": first_from_elsewhere,
    "a queue pair of the same number on another host is somebody else's": numbers_alike,
}
# Of a liar who has the victims' number for a user, or root's, on the initiator's host.
SAME_NUMBER = {"a user of the same number on another host is a stranger": user_of_the_same_number}

THERE_ALONE = "an initiator looks for its peer's broker on the owner's host alone, where the liar is not"
BETWEEN = "the way from the initiator's host to the owner's leads past no port of the initiator's host"
AWAY = "a companion for the initiator's queue pair goes to the initiator's host, where the liar is not"
# By whom the liar is beside: the attack, and why it has no meaning there.
LEFT_OUT = {
    "initiator": {
        "who holds the port and says nothing is a stranger": THERE_ALONE,
        "who holds the port and greets is waited for, and no longer than it is there": THERE_ALONE,
        "who holds the port and babbles is not believed": THERE_ALONE,
        "who holds the port and refuses what it is asked is told nothing": THERE_ALONE,
        "who holds the port and says that all is the device's is told nothing": THERE_ALONE,
        "a thief's slots in regions of the owner have nothing written to them": THERE_ALONE,
        "slots that are none are refused": THERE_ALONE,
        "no slot of a thief without the device is used": THERE_ALONE,
        "a thief with the key of the owner's slots is not believed": THERE_ALONE,
        "who holds the port and has not the key is told nothing": THERE_ALONE,
        "a relay that alters nothing is not noticed": BETWEEN,
        "a byte altered in any field of any frame is noticed, or does no harm": BETWEEN,
    },
    "owner": {
        "numbers alone bind a queue pair and open a companion, over which nothing is served": AWAY,
        "who takes no replies keeps no buffers from others": AWAY,
        "who has proven nothing has not all receives": AWAY,
        "who has proven nothing has not all links": AWAY,
    },
}

FAILS = "A false owner on the peer's host can have a queue pair fail whose program asks for virtual memory there"
DELAYS = "A program that holds `link.port` on a peer's host before adverb does can delay first requests"
# What comes of these where the liar is beside the owner is no failure: threats.md says that it cannot be helped.
DOCUMENTED = {
    "who holds the port and says nothing is a stranger": (DELAYS, FAILS),
    "who holds the port and greets is waited for, and no longer than it is there": (DELAYS, FAILS),
    "who holds the port and babbles is not believed": (FAILS,),
    "who holds the port and refuses what it is asked is told nothing": (FAILS,),
    "who holds the port and says that all is the device's is told nothing": (FAILS,),
    "a thief's slots in regions of the owner have nothing written to them": (FAILS,),
    "slots that are none are refused": (FAILS,),
    "no slot of a thief without the device is used": (DELAYS, FAILS),
    "a thief with the key of the owner's slots is not believed": (FAILS,),
    "who holds the port and has not the key is told nothing": (FAILS,),
}
