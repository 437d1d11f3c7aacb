# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Hellos: a thousand at once, and what each costs the broker as its members become more."""

import contextlib
import os
import resource
import selectors
import socket
import time

import protocol as p
from attacks import device
from peer import Connection
from syscalls import Counted
from victims import Stage

AT_ONCE = 1000
DUE = 3           # s
MEMBERS = (10, 1000)
COUNTED = 200     # hellos, one after the other
FLAT = 1.1
ADD_QP = p.Layout("add_qp", 32, gid=p.ID, qpn="I", zero="I")


def hello(stage):
    return p.frame("hello", process=os.urandom(16), nonce=os.urandom(16), dgid=device().id, attempt=1,
                   dqpn=stage.target["qpn"], oldest=p.VERSION, newest=p.VERSION)


def at_once(stage):
    """How many are answered well, and the seconds until the last was, or was closed"""
    selector, connections = selectors.DefaultSelector(), {}
    began = time.monotonic()
    for _ in range(AT_ONCE):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", stage.PORT))
        connections[sock] = Connection(sock)
        selector.register(sock, selectors.EVENT_WRITE)
    left, good, last = AT_ONCE, 0, began
    while left and time.monotonic() < began + 10 * DUE:
        for key, events in selector.select(0.5):
            sock, connection = key.fileobj, connections[key.fileobj]
            if events & selectors.EVENT_WRITE:
                sock.send(hello(stage))
                selector.modify(sock, selectors.EVENT_READ)
                continue
            try:
                more = sock.recv(4096)
            except ConnectionError:
                more = b""
            connection.unread += more
            answer = None
            while answer is None and (frame := connection.cut()):
                if frame[0][2] == p.BY_NAME["hello_ack"].number:
                    answer = p.BY_NAME["hello_ack"].unpack(frame[1]).answer
            if answer is None and more:
                continue  # the banner
            good += answer == p.OK
            left, last = left - 1, time.monotonic()
            selector.unregister(sock)
    for sock in connections:
        sock.close()
    return good, last - began if left == 0 else time.monotonic() - began


def join(stage):
    """A member of the broker as any program is, with a queue pair that nobody asks for"""
    member = socket.socket(socket.AF_UNIX)
    member.connect(f"\0adverb.{os.geteuid()}.{stage.PORT}")
    payload = ADD_QP.pack(gid=device().id, qpn=0xFFFFF0)
    member.sendall(p.HEADER.pack(p.MAGIC, p.VERSION, ADD_QP.number, len(payload)) + payload)
    return member


def one_by_one(stage):
    for _ in range(COUNTED):
        connection = Connection.to(stage.PORT)
        connection.send(hello(stage))
        assert connection.expect("hello_ack").answer == p.OK
        connection.close()


def per_hello(stage):
    """The broker's and the owner's system calls, by the number of members"""
    costs, members = {}, []
    with contextlib.ExitStack() as open_now:
        for count in MEMBERS:
            while len(members) < count - len(stage.running):
                members.append(open_now.enter_context(join(stage)))
            one_by_one(stage)  # all that have joined are known to the broker from then on
            with Counted([stage.broker()]) as broker, Counted([stage.owner.pid]) as owner:
                one_by_one(stage)
            costs[count] = (broker.calls / COUNTED, owner.calls / COUNTED)
    return costs


def measure(build, scratch, options):
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    stage = Stage(os.path.join(build, "test/liar/victim"), os.path.join(build, "preload/libadverb.so"),
                  os.path.join(build, "test/loopback"), scratch)
    stage.open()
    try:
        if not options.quick:  # on a busy machine some are closed, as their time is over
            good, took = at_once(stage)
            name = f"{AT_ONCE} hellos at once"
            yield {"name": f"{name}: closed without an answer, or refused", "unit": "", "value": AT_ONCE - good,
                   "at_most": 0}
            yield {"name": f"{name}: until the last is answered or closed", "unit": "s", "value": round(took, 3),
                   "at_most": DUE}
        costs = per_hello(stage)
    finally:
        stage.close()
    few, many = (costs[count] for count in MEMBERS)
    for side, whose in enumerate(("the broker", "the owner")):
        yield {"name": f"system calls of {whose} a hello, {MEMBERS[1]} members to {MEMBERS[0]}", "unit": "times",
               "value": round(many[side] / few[side], 2), "at_most": FLAT, "few": round(few[side], 1),
               "many": round(many[side], 1)}
