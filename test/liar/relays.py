# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The liar between both: it passes on all that is said, but for one byte."""

import concurrent.futures
import queue
import select
import socket
import threading
import time

import options
import protocol as p
from attacks import device
from peer import SLOW, listener
from thieves import Robbed

FIRST_PORT = 7820
WORKERS = 6
PATIENCE = 1  # seconds that both ends are left to themselves with it, before the relay ends what hangs
LIMIT = 30  # and after which all has to be over

TO_OWNER = ("hello", *(["auth"] if options.key else []), "bind", "companion", "claim", "prove")
TO_INITIATOR = ("banner", "hello_ack", "bind_ack", "companion_ack", "slot", "prove_ack")
# What nobody has to notice: it means nothing, is a hint, or is said before and after the proof alone.
HARMLESS = {
    "banner": {"oldest", "newest", "capabilities"}, "hello": {"dgid", "dqpn", "attempt", "capabilities", "newest"},
    "hello_ack": {"zero", "capabilities", "ticket", "newest"}, "auth": set(), "bind": {"patience"},
    "bind_ack": {"proof"}, "claim": {"key", "zero"}, "slot": set(), "companion": set(), "companion_ack": set(), "prove": {"zero", "share"},
    "prove_ack": {"zero"},
}


class Relay:
    """Alters the first frame of that name by one byte"""

    def __init__(self, port, name, offset, flip=0x55):
        self.name, self.offset, self.flip, self.altered, self.seen = name, offset, flip, None, []
        self.ends, self.buffers = {}, {}
        self.listener = listener(device().address, port)

    def run(self, over, owner):
        """Until `over` says so"""
        while not over():
            for sock in select.select([self.listener, *self.ends], [], [], 0.02)[0]:
                if sock is self.listener:
                    one, other = self.listener.accept()[0], socket.create_connection((device().address, owner), timeout=10)
                    self.ends |= {one: other, other: one}
                    self.buffers |= {one: b"", other: b""}
                    for end in (one, other):
                        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                elif sock in self.ends:
                    self.pass_on(sock)

    def pass_on(self, sock):
        try:
            more = sock.recv(65536)
            if more:
                self.buffers[sock] += more
                self.ends[sock].sendall(self.take(sock))
                return
        except OSError:
            pass
        self.end(sock)

    def end(self, sock):
        other = self.ends.pop(sock)
        del self.ends[other]
        sock.close()
        other.close()

    def take(self, sock):
        """The whole frames that have come from it, one of them altered perhaps"""
        out = b""
        while len(data := self.buffers[sock]) >= p.HEADER.size:
            header = p.HEADER.unpack_from(data)
            whole = p.HEADER.size + header[3]
            if len(data) < whole:
                break
            frame, self.buffers[sock] = bytearray(data[:whole]), data[whole:]
            name = p.BY_NUMBER[header[2]].name
            self.seen.append(name)
            if name == self.name and not self.altered:
                self.altered = time.monotonic()
                frame[self.offset] ^= self.flip
            out += bytes(frame)
        return out

    def end_all(self):
        while self.ends:
            self.end(next(iter(self.ends)))

    def close(self):
        self.listener.close()
        self.end_all()


def places():
    """Each field of each frame: its name and where its first byte is"""
    for name in TO_OWNER + TO_INITIATOR:
        for at, field in zip((0, 4, 6, 8), p.HEADER_FIELDS):
            yield name, "header." + field, at
        for field in p.BY_NAME[name].fields:
            yield name, field, p.HEADER.size + p.BY_NAME[name].offset(field)


def altered(stage, lock, port, name, field, offset):
    """Why it is not as it should be, or nothing"""
    relay = Relay(port, name, offset)
    with lock:
        robbed = Robbed(stage, port)
    try:
        def late():
            return robbed.seconds() > LIMIT * SLOW

        relay.run(lambda: robbed.answer() or late() or
                  relay.altered and time.monotonic() - relay.altered > PATIENCE * SLOW, stage.PORT)
        if hung := not robbed.took:
            relay.end_all()
            relay.run(lambda: robbed.answer() or late(), stage.PORT)
        took = robbed.took
        if not took:
            return f"no end within {LIMIT} s"
        if not relay.altered:
            return f"the frame was never sent: {relay.seen}"
        if took["wrong"]:
            return f"something wrong is believed: {took}"
        whole = took["failed"] == 0 and took["rounds"] == 2
        again = any(relay.seen.count(frame) > 1 for frame in ("hello", "bind", "companion", "claim", "prove"))
        if whole and not again and not hung and field not in HARMLESS[name]:
            return f"nobody noticed: {relay.seen}"
        return ""
    finally:
        relay.close()
        robbed.program.end()


def one_byte(stage):
    with stage.watch() as watch:
        lock, ports = threading.Lock(), queue.SimpleQueue()
        for n in range(WORKERS):
            ports.put(FIRST_PORT + n)

        def attempt(place):
            port = ports.get()
            try:
                return place, altered(stage, lock, port, *place)
            finally:
                ports.put(port)

        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            outcomes = list(pool.map(attempt, options.some(places())))
        bad = [f"{name}.{field}: {why}" for (name, field, _), why in outcomes if why]
        print(f"# {len(outcomes)} bytes altered")
        assert not bad, "; ".join(bad)
        watch.expects("malformed_messages")


def unaltered(stage):
    with stage.watch() as watch:
        relay = Relay(FIRST_PORT, "nothing", 0)
        robbed = Robbed(stage, FIRST_PORT)
        relay.run(robbed.answer, stage.PORT)
        took = robbed.took
        assert took["rounds"] == 2 and took["failed"] == took["wrong"] == 0, took
        for name in TO_OWNER + TO_INITIATOR:
            assert relay.seen.count(name) == 1, f"{name}: {relay.seen}"
        robbed.program.end()
        relay.close()
        watch.expects("qps_proven", 1, 1)


ALL = {
    "a relay that alters nothing is not noticed": unaltered,
    "a byte altered in any field of any frame is noticed, or does no harm": one_byte,
}
