# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The liar's end of connections, queue pairs and links: does what adverb does, or anything else. What it is told
by anybody is kept in `heard`, to be looked through for secrets."""

import os
import socket
import time

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

import options
import protocol as p

SLOW = options.slow
DUE = 10  # seconds that an answer is waited for
MESSAGE = p.REQUEST.size + 4096
heard = []


def until(condition, seconds, pause=0.002):
    """What it answers at last: true, or what it was when the time was over"""
    end = time.monotonic() + seconds * SLOW
    while not (answer := condition()) and time.monotonic() < end:
        time.sleep(pause)
    return answer


class Ended(Exception):
    """The other end has closed the connection"""


class Connection:
    """Frames over TCP"""

    def __init__(self, sock):
        self.socket, self.unread = sock, b""
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @staticmethod
    def to(port, address="127.0.0.1", source=None):
        return Connection(socket.create_connection((address, port), timeout=DUE * SLOW,
                                                   source_address=source and (source, 0)))

    def send(self, data):
        self.socket.sendall(data)

    def next(self, seconds=DUE):
        """The next frame: its layout's name, its values; Ended, or TimeoutError"""
        end = time.monotonic() + seconds * SLOW
        while not (whole := self.cut()):
            self.socket.settimeout(max(end - time.monotonic(), 0.001))
            try:
                more = self.socket.recv(65536)
            except ConnectionError:
                more = b""
            if not more:
                raise Ended()
            heard.append(more)
            self.unread += more
        header, payload = whole
        layout = p.BY_NUMBER[header[2]]
        return layout.name, layout.unpack(payload)

    def cut(self):
        if len(self.unread) < p.HEADER.size:
            return None
        header = p.HEADER.unpack_from(self.unread)
        end = p.HEADER.size + header[3]
        if len(self.unread) < end:
            return None
        payload, self.unread = self.unread[p.HEADER.size:end], self.unread[end:]
        return header, payload

    def expect(self, name, seconds=DUE):
        while True:
            got, values = self.next(seconds)
            if got == name:
                return values

    def is_ended(self, seconds=DUE):
        """Whether the other end closes it"""
        try:
            while True:
                self.next(seconds)
        except Ended:
            return True
        except TimeoutError:
            return False

    def close(self):
        self.socket.close()


class Host:
    """Where queue pairs are, by RoCE's GIDs over IPv4"""

    def __init__(self, identity):
        self.id = identity
        self.gid = GID(":".join(identity[at:at + 2].hex() for at in range(0, 16, 2)))
        self.address = socket.inet_ntop(socket.AF_INET, identity[12:])


class Device(Host):
    """The liar's; `owner`, `initiator`: the hosts that the victims are on"""

    def __init__(self):
        self.context = Context(name=options.device)
        self.domain = PD(self.context)
        super().__init__(socket.inet_pton(socket.AF_INET6, str(self.context.query_gid(1, options.gid))))
        self.other = Host(bytes(10) + b"\xff\xff" + socket.inet_aton(options.other)) if options.other else self
        self.owner = self.other if options.beside == "initiator" else self
        self.initiator = self.other if options.beside == "owner" else self


class Queue:
    """A queue pair with memory of its own: `receives` messages of `size` bytes may come before they are taken"""

    def __init__(self, device, receives=0, size=MESSAGE, sends=256, rights=0):
        self.device, self.receives, self.size, self.sends = device, receives, size, sends
        self.cq = CQ(device.context, receives + sends + 1)
        self.memory = MR(device.domain, (receives + 1) * size, e.IBV_ACCESS_LOCAL_WRITE)
        self.qp = QP(device.domain, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq,
                                               cap=QPCap(sends, max(receives, 1), 1, 1)))
        self.number, self.rights, self.messages, self.sent = self.qp.qp_num, rights, [], []

    def connect(self, peer, psn=0, peers_psn=0, timeout=options.timeout, host=None):
        """To a queue pair of the owner's host, or of `host`"""
        host = host or self.device.owner
        attr = QPAttr(qp_state=e.IBV_QPS_INIT)
        attr.port_num, attr.qp_access_flags = 1, self.rights
        self.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS)
        for slot in range(self.receives):
            self.receive(slot)
        attr = QPAttr(qp_state=e.IBV_QPS_RTR)
        attr.ah_attr = AHAttr(gr=GlobalRoute(dgid=host.gid, sgid_index=options.gid), is_global=1, port_num=1)
        attr.path_mtu, attr.dest_qp_num, attr.rq_psn = e.IBV_MTU_1024, peer, peers_psn
        attr.max_dest_rd_atomic, attr.min_rnr_timer = 1, 1
        self.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
                       | e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER)
        attr.qp_state, attr.sq_psn, attr.timeout = e.IBV_QPS_RTS, psn, timeout
        attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic = 5, 7, 1  # soft-RoCE takes 7 for without end, in both
        self.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY
                       | e.IBV_QP_SQ_PSN | e.IBV_QP_MAX_QP_RD_ATOMIC)

    def receive(self, slot):
        self.qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[self.at(slot, self.size)]))

    def at(self, slot, size):
        return SGE(self.memory.buf + slot * self.size, size, self.memory.lkey)

    def post(self, data, opcode=e.IBV_WR_SEND, to=None):
        """Of requests whose bytes differ the one before has to be done: they lie in one place"""
        self.memory.write(data, len(data), self.receives * self.size)
        work = SendWR(wr_id=1 << 32, opcode=opcode, num_sge=1, sg=[self.at(self.receives, len(data))],
                      send_flags=e.IBV_SEND_SIGNALED)
        if to and opcode == e.IBV_WR_ATOMIC_FETCH_AND_ADD:
            work.set_wr_atomic(*to, 0, 0)
        elif to:
            work.set_wr_rdma(*to)
        self.qp.post_send(work)

    def poll(self):
        while (taken := self.cq.poll(16))[0]:
            for wc in taken[1]:
                if wc.wr_id == 1 << 32:
                    self.sent.append(wc.status)
                elif wc.status == e.IBV_WC_SUCCESS:
                    message = bytes(self.memory.read(wc.byte_len, wc.wr_id * self.size))
                    heard.append(message)
                    self.messages.append(message)
                    self.receive(wc.wr_id)

    def done(self, seconds=DUE):
        """The status of the request sent before"""
        def any_sent():
            self.poll()
            return self.sent
        return self.sent.pop(0) if until(any_sent, seconds, 0.0002) else None

    def send(self, data, seconds=DUE):
        self.post(data)
        return self.done(seconds)

    def write(self, data, address, key):
        self.post(data, e.IBV_WR_RDMA_WRITE, (key, address))
        return self.done()

    def read(self, size, address, key, opcode=e.IBV_WR_RDMA_READ):
        """What is there, or None. By an atomic that adds nothing, where `opcode` says so"""
        self.post(bytes(size), opcode, (key, address))
        return bytes(self.memory.read(size, self.receives * self.size)) if self.done() == e.IBV_WC_SUCCESS else None

    def message(self, seconds=DUE):
        """The next one, or None"""
        def any_message():
            self.poll()
            return self.messages
        return self.messages.pop(0) if until(any_message, seconds, 0.0002) else None

    def close(self):
        for thing in (self.qp, self.cq, self.memory):
            thing.close()


class Link:
    """A connection to the owner of a queue pair, as far along as is wanted; `identity`: by which it proves"""

    living = []

    def __init__(self, device, port, target, process=None, identity=None, source=None, **hello):
        self.living.append(self)
        self.device, self.target, self.queues = device, target, []
        self.process, self.nonce = process or os.urandom(16), os.urandom(16)
        self.identity = identity or p.KeyPair()
        self.binds, self.handles, self.companions, self.pairs, self.slots = {}, {}, {}, {}, {}
        self.connection = Connection.to(port, device.owner.address, source)
        speaks = {"oldest": p.VERSION, "newest": p.VERSION}
        self.connection.send(p.frame("hello", **{"process": self.process, "nonce": self.nonce, "dgid": device.owner.id,
                                                 "dqpn": target, "attempt": 1} | speaks | hello))
        self.hello = self.connection.expect("hello_ack")
        if options.key and self.hello.answer == p.OK:
            assert self.hello.mac == p.know_key(options.key, b"o", self.nonce, self.hello.nonce), self.hello
            self.say("auth", mac=p.know_key(options.key, b"i", self.nonce, self.hello.nonce))

    def say(self, name, **values):
        self.connection.send(p.frame(name, **values))

    def ask(self, name, answer, **values):
        self.say(name, **values)
        return self.connection.expect(answer)

    def bind(self, number, handle, target=None, **other):
        """`number`: of the queue pair that it says is its own"""
        self.binds[handle] = {"sgid": self.device.id, "dgid": self.device.owner.id, "sqpn": number, "handle": handle,
                              "dqpn": target or self.target} | other
        ack = self.ask("bind", "bind_ack", **self.binds[handle], patience=100)
        self.handles[handle] = ack.remote_handle
        assert ack.answer != p.OK or ack.proof == 1, "the kernel vouches for the liar"
        return ack

    def companion(self, handle, opens=True, receives=16, **other):
        """Its queue pair, open; None: refused"""
        queue = Queue(self.device, receives)
        self.queues.append(queue)
        nonce = os.urandom(16)
        asked = {"handle": handle, "nonce": nonce, "qpn": queue.number, "psn": 1234, "credits": 16,
                 "protocol": p.TRANSFER, "protocol_version": p.TRANSFER_VERSION, "message_max": MESSAGE,
                 "timeout": 14} | other
        ack = self.ask("companion", "companion_ack", **asked)
        while ack.handle != handle:  # another of its, which had to go
            ack = self.connection.expect("companion_ack")
        self.companions[handle] = (queue, asked, ack)
        if ack.answer != p.OK:
            return None
        queue.connect(ack.qpn, 1234, ack.psn)
        queue.credits = ack.credits
        if opens and receives:
            queue.send(ack.nonce)
            assert queue.message() == nonce, "the companion does not open"
        elif opens:
            queue.send(ack.nonce)
        return queue

    def claim(self, handle, key):
        self.slots[handle] = slot = self.ask("claim", "slot", handle=handle, key=key)
        self.pairs[handle] = p.KeyPair()
        return slot

    def fill(self, handle, by, slot=None, share=None):
        """Writes the share into the slot by a queue pair"""
        slot = slot or self.slots[handle]
        return by.write(share or self.pairs[handle].open, p.slot_address(slot.kind, slot.index), slot.rkey)

    def proof(self, handle, slot=None, word=bytes(8)):
        """This end's MAC, and the owner's; `word`: what was in a slot of atomics"""
        slot, pair = slot or self.slots[handle], self.pairs[handle]
        _, asked, ack = self.companions[handle]
        transcript = p.TRANSCRIPT.pack(
            self.process, self.hello.process, self.nonce, self.hello.nonce,
            p.BY_NAME["bind"].pack(**self.binds[handle]), self.handles[handle], slot.kind, slot.rkey, slot.index, 0,
            p.BY_NAME["companion"].pack(**asked), p.BY_NAME["companion_ack"].form.pack(*ack), self.identity.open,
            pair.open, slot.share, word)
        return p.proof((pair.common(slot.share), self.identity.common(slot.share)), options.key, transcript)

    def prove(self, handle, mac, **other):
        qpn = self.companions[handle][1]["qpn"]
        return self.ask("prove", "prove_ack", **{"handle": handle, "companion_qpn": qpn, "mac": mac,
                                                 "identity": self.identity.open} | other)

    def prove_well(self, handle, key, by):
        """As adverb does: whether both ends know each other"""
        slot = self.claim(handle, key)
        assert slot.answer == p.OK, f"no slot: {slot.answer}"
        assert self.fill(handle, by) == e.IBV_WC_SUCCESS, "the slot cannot be written"
        mine, theirs = self.proof(handle)
        ack = self.prove(handle, mine)
        assert ack.answer == p.OK and ack.mac == theirs, f"a good proof is not believed: {ack.answer}"

    def close(self):
        self.living.remove(self)
        self.connection.close()
        for queue in self.queues:
            queue.close()


def listener(address, port):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    sock.listen(64)
    return sock
