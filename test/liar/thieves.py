# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The liar between an initiator and its owner: in the place of the broker, or relaying."""

import itertools
import os
import select
import time

import options
import protocol as p
from attacks import MINE, device, peer
from peer import MESSAGE, SLOW, Connection, Queue, heard, listener
from victims import SECRETS, Program

THIEF = 7800  # the ports that the robbed look for their peers' brokers at
NAKED = 10  # IBV_WC_REM_ACCESS_ERR: the device's own answer to a virtual key
BANNER = p.frame("banner", oldest=2, newest=2)


class Robbed:
    """An initiator whose peer's port is held by somebody else, asking a queue pair of the owner's"""

    def __init__(self, stage, port, put=False):
        self.stage, self.program = stage, Program(stage, port, stage.asks)
        self.theirs, self.mine = stage.owner.qp(), self.program.qp()
        stage.owner.connect(self.theirs, self.mine)
        self.program.connect(self.mine, self.theirs)
        self.begun, self.took = time.monotonic(), None
        if put:  # words of the secret, so that they are known where they are met
            self.program.tell("put", self.mine["qp"], stage.seed, stage.scratch_region["address"],
                              stage.scratch_region["key"])
        else:
            stage.tell_to_ask(self.program, self.mine, 2)

    def answer(self, seconds=0):
        """What came of it, if it has ended"""
        self.took = self.took or self.program.hear_now(seconds)
        return self.took

    def seconds(self):
        return time.monotonic() - self.begun


class Thief:
    """Answers in the place of the owner; what it does is its children's"""
    greets = True
    port = THIEF

    def __init__(self):
        self.listener, self.connections, self.said, self.queue = listener(device().address, self.port), [], [], None

    def step(self, seconds=0.02):
        for sock in select.select([self.listener, *(c.socket for c in self.connections)], [], [], seconds)[0]:
            if sock is self.listener:
                connection = Connection(self.listener.accept()[0])
                self.connections.append(connection)
                if self.greets:
                    connection.send(BANNER)
                self.on_connection(connection)
                continue
            connection = next(c for c in self.connections if c.socket is sock)
            try:
                more = sock.recv(65536)
            except ConnectionError:
                more = b""
            if not more:
                self.drop(connection)
                continue
            heard.append(more)
            connection.unread += more
            while connection in self.connections and (whole := connection.cut()):
                layout = p.BY_NUMBER[whole[0][2]]
                self.said.append(layout.name)
                self.on_frame(connection, layout.name, layout.unpack(whole[1]))

    def drop(self, connection):
        self.connections.remove(connection)
        connection.close()

    def close(self):
        self.listener.close()
        for connection in list(self.connections):
            self.drop(connection)
        if self.queue:
            self.queue.close()

    def until(self, condition, seconds):
        end = time.monotonic() + seconds * SLOW
        while not (answer := condition()) and time.monotonic() < end:
            self.step()
        return answer

    def lasts(self, seconds):
        """Goes on for so long, however slow all is"""
        self.until(lambda: False, seconds / SLOW)

    def on_connection(self, connection):
        pass

    def on_frame(self, connection, name, values):
        pass


class Mute(Thief):
    greets = False


class Silent(Thief):
    pass


class Babbler(Thief):
    def on_connection(self, connection):
        connection.send(p.HEADER.pack(p.MAGIC, 2, 2, 96) + os.urandom(96) + os.urandom(300))


class Pretender(Thief):
    """Says yes to everything; `companion`: opens one; `slot`: what it offers"""
    companion, slot, key = True, {}, options.key

    def __init__(self):
        super().__init__()
        self.process, self.nonce, self.pair = os.urandom(16), os.urandom(16), p.KeyPair()

    def on_frame(self, connection, name, values):
        if name == "hello":
            mac = p.know_key(self.key, b"o", values.nonce, self.nonce) if self.key else bytes(32)
            connection.send(p.frame("hello_ack", process=self.process, nonce=self.nonce, oldest=2, newest=2, mac=mac,
                                    ticket=os.urandom(16)))
        elif name in ("bind", "probe"):
            connection.send(p.frame("bind_ack", handle=values.handle, remote_handle=4711, proof=0))
        elif name == "companion" and self.companion:
            self.open(connection, values)
        elif name == "claim":
            connection.send(p.frame("slot", **{"handle": values.handle, "kind": p.SLOT_WRITE, "share": self.pair.open}
                                    | self.slot))
        elif name == "prove":
            connection.send(p.frame("prove_ack", handle=values.handle, mac=os.urandom(32)))

    def open(self, connection, asked):
        if self.queue:
            self.queue.close()
        self.queue, self.opened, nonce = Queue(device(), 16), False, os.urandom(16)
        self.queue.connect(asked.qpn, 99, asked.psn, host=device().initiator)
        connection.send(p.frame("companion_ack", handle=asked.handle, nonce=nonce, qpn=self.queue.number, psn=99,
                                credits=8, protocol=asked.protocol, protocol_version=asked.protocol_version,
                                message_max=MESSAGE))
        self.expected, self.theirs = nonce, asked.nonce

    def step(self, seconds=0.02):
        super().step(seconds)
        if self.queue and not self.opened:
            self.queue.poll()
            if self.queue.messages:
                assert self.queue.messages.pop(0) == self.expected
                self.opened = True
                self.queue.send(self.theirs)


class Refuser(Pretender):
    """Owns the queue pair, and has no companion for it"""
    companion = False

    def on_frame(self, connection, name, values):
        super().on_frame(connection, name, values)
        if name == "companion":
            connection.send(p.frame("companion_ack", handle=values.handle, protocol=values.protocol,
                                    answer=p.NO_RESOURCES))


class Denier(Pretender):
    slot = {"answer": p.REAL_KEY}


def rob(stage, thief, seconds, wanted=None, put=False):
    """The robbed one's requests fail within so many seconds, by that status; nothing of them is told to the thief"""
    robbed = Robbed(stage, thief.port, put)
    took = thief.until(robbed.answer, seconds)
    assert took, f"the robbed initiator does not end within {seconds} s"
    believed = f"what the thief says is believed: {took}"
    assert took["failed"] != 0 and took["wrong"] == 0 and took["rounds"] == 1, believed
    assert wanted is None or took["failed"] == wanted, took
    if thief.queue:
        thief.queue.poll()
        assert not thief.queue.messages, "the thief is told something over its companion"
    return robbed


def thieves(kind, seconds, status, **asks):
    def attack(stage):
        with stage.watch():
            thief = kind()
            robbed = rob(stage, thief, seconds, status, **asks)
            robbed.program.end()
            thief.close()
    return attack


def silence_after_banner(stage):
    with stage.watch():
        thief = Silent()
        robbed = Robbed(stage, THIEF)
        assert thief.until(lambda: thief.said, 10), "nothing is said to a broker that greets"
        thief.lasts(5)
        assert not robbed.answer(), f"a broker that greets is not waited for: {robbed.took}"
        assert thief.said[:1] == ["hello"], thief.said
        thief.close()
        took = robbed.answer(15 * SLOW)
        assert took and took["failed"] != 0 and took["wrong"] == 0, f"it waits for who has gone: {took}"
        robbed.program.end()


def slots_of_regions(stage):
    with stage.watch():
        kinds = (p.SLOT_WRITE, p.SLOT_READ, p.SLOT_ATOMIC)
        for kind, region in options.some(itertools.product(kinds, (stage.pinned, stage.secret))):
            thief = type("Offers", (Pretender,), {"slot": {"kind": kind, "index": 3, "rkey": region["key"]}})()
            robbed = rob(stage, thief, 20)
            assert "claim" in thief.said and thief.opened, thief.said
            robbed.program.end()
            thief.close()


def without_key(stage):
    with stage.watch():
        thief = type("Stranger", (Pretender,), {"key": os.urandom(32)})()
        robbed = rob(stage, thief, 20, put=True)
        assert set(thief.said) == {"hello"}, f"who has not the key is told more: {thief.said}"
        robbed.program.end()
        thief.close()


def no_slots(stage):
    with stage.watch():
        wrong = ({"kind": 0}, {"kind": 3}, {"kind": 77}, {"index": 64}, {"index": 1 << 31})
        for slot in options.some(wrong):
            thief = type("Offers", (Pretender,), {"slot": {"rkey": stage.pinned["key"]} | slot})()
            robbed = rob(stage, thief, 20)
            assert robbed.program.counters()["malformed_messages"] >= 1, slot
            robbed.program.end()
            thief.close()


def slots_without_a_device(stage):
    """A slot that is none has the queue pair fail; who shows nothing but TCP does not get it used"""
    with stage.watch():
        thief = type("Offers", (Pretender,), {"slot": {"rkey": stage.pinned["key"]}, "companion": False})()
        robbed = Robbed(stage, THIEF)
        assert thief.until(lambda: "claim" in thief.said, 5), thief.said
        thief.lasts(2)
        assert not robbed.answer(), f"the slot of who knows but numbers is used: {robbed.took}"
        thief.close()
        took = robbed.answer(20 * SLOW)
        assert took and took["failed"] != 0 and took["wrong"] == 0, took
        robbed.program.end()


def believed_by_nobody(stage):
    """A thief that knows the key of the owner's own slots, where the WRITE of the proof is done"""
    with stage.watch() as watch:
        link = peer(stage, SECRETS)
        slot = link.claim(MINE, stage.secret["key"])
        for put in (False, True):
            thief = type("Knows", (Pretender,), {"slot": {"rkey": slot.rkey, "index": 63}})()
            robbed = rob(stage, thief, 20, put=put)
            assert "prove" in thief.said, thief.said
            assert robbed.program.counters()["auth_failures"] >= 1
            assert "could not prove to be the other end" in robbed.program.log(), robbed.program.log()
            robbed.program.end()
            thief.close()


ALL = {
    "who holds the port and says nothing is a stranger": thieves(Mute, 10, NAKED),
    "who holds the port and greets is waited for, and no longer than it is there": silence_after_banner,
    "who holds the port and babbles is not believed": thieves(Babbler, 20, None),
    "who holds the port and refuses what it is asked is told nothing": thieves(Refuser, 20, None, put=True),
    "who holds the port and says that all is the device's is told nothing": thieves(Denier, 20, NAKED, put=True),
    "a thief's slots in regions of the owner have nothing written to them": slots_of_regions,
    "slots that are none are refused": no_slots,
    "no slot of a thief without the device is used": slots_without_a_device,
    "a thief with the key of the owner's slots is not believed": believed_by_nobody,
}
WITHOUT_KEY = {"who holds the port and has not the key is told nothing": without_key}
