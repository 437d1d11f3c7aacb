# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What an honest peer's requests take while another, a liar (test/liar), has filled one bound of the owner's: beside
those of programs that nobody attacks, which ask by turns, as what else this host does is the same for both."""

import os
import time

import pyverbs.enums as e
from pyverbs.qp import QPAttr

import protocol as p
from attacks import HONEST, MINE, device, peer, pretend
from native import paired
from peer import Link
from victims import Stage

ROUNDS = 300           # of one run, whose median counts
MOST = 1.5             # times as long
CHANNELS, QUEUE_PAIRS, SLOTS, GRANTS, MISSES = 64, 4096, 64, 16, 1000
LENDERS = 16           # queue pairs that borrow as much as each may
UNANSWERED = 64        # claims of each connection of who makes them without pause
REFILL = 0.005         # s between two looks of who keeps a bound full


class Sleepers(Stage):
    """Their threads sleep whenever they wait: on few processors it is chance who finds the other still looking"""
    link = {"spin": 0}


class Unharmed(Sleepers):
    PORT = Stage.PORT + 1


def fill_channels(stage):
    link = peer(stage)
    while link.companion(MINE, receives=1):
        pass
    assert len(link.queues) >= CHANNELS
    return None


def fill_queue_pairs(stage):
    link = Link(device(), stage.PORT, stage.target["qpn"])
    values = {"sgid": device().id, "dgid": device().id, "sqpn": stage.source["qpn"], "dqpn": stage.target["qpn"]}
    link.connection.send(b"".join(p.frame("bind", **values, handle=n) for n in range(1, QUEUE_PAIRS + 2)))
    taken = [link.connection.expect("bind_ack").answer for _ in range(QUEUE_PAIRS + 1)]
    assert taken == [p.OK] * QUEUE_PAIRS + [p.NO_RESOURCES]


def fill_grants(stage):
    for _ in range(LENDERS):
        link = peer(stage)
        statuses = []
        for run in range(1, GRANTS + 2):
            link.queue.send(p.request(p.GRANT, link.handles[MINE], MINE, stage.liars["address"], 8, stage.liars["key"],
                                      run=run))
            statuses.append(p.REPLY.unpack(link.queue.message()[:p.REPLY.size]).status)
        assert p.NAK in statuses, statuses


def fill_unanswered(stage):
    """As many requests as its credits allow on each channel, none of whose replies is taken. The device tries to
    deliver them now and then alone: this one would do it on a processor that is wanted"""
    seldom = QPAttr(qp_state=e.IBV_QPS_RTS)
    seldom.min_rnr_timer = 31  # half a second
    link = peer(stage)
    request = p.request(p.READ, link.handles[MINE], MINE, stage.liars["address"], 64, stage.liars["key"])
    for _ in range(CHANNELS - 1):
        queue = link.companion(MINE, receives=0)
        if not queue:
            break
        queue.qp.modify(seldom, e.IBV_QP_STATE | e.IBV_QP_MIN_RNR_TIMER)
        link.prove_well(MINE, stage.liars["key"], link.own)  # else it is refused, and nothing carried out
        for _ in range(queue.credits):
            queue.post(request)


def fill_misses(stage):
    """Asks, whenever it is answered, for keys that do not exist"""
    link, asked = peer(stage), 0

    def ask():
        nonlocal asked
        asked += 1
        link.queue.post(p.request(p.QUERY, link.handles[MINE], MINE, 0, 0, 0xD0000000 + asked))

    def refill():
        link.queue.poll()
        link.queue.sent.clear()
        for _ in range(len(link.queue.messages)):
            link.queue.messages.pop()
            ask()
    for _ in range(link.queue.credits):
        ask()
    while asked < MISSES + link.queue.credits:
        refill()
    return refill


def fill_claims(stage):
    """Has all the slots that a peer may have under way; one is offered anew for each whose time is over"""
    link = Link(device(), stage.PORT, stage.target["qpn"])
    for handle in range(1, SLOTS + 1):
        assert link.bind(stage.source["qpn"], handle, stage.target["qpn"]).answer == p.OK
    for handle in range(1, SLOTS + 1):
        assert link.claim(handle, stage.secret["key"]).answer == p.OK


def claims_without_pause(connections):
    """Each has some unanswered all the time"""
    def fill(stage):
        links = [Link(device(), stage.PORT, stage.target["qpn"]) for _ in range(connections)]
        claim = p.frame("claim", handle=HONEST, key=stage.secret["key"])
        answer = p.HEADER.size + p.BY_NAME["slot"].size
        unread = dict.fromkeys(links, 0)  # bytes of an answer that is not whole
        for link in links:
            pretend(link, stage)
            link.connection.send(UNANSWERED * claim)
            link.connection.socket.setblocking(False)

        def refill():
            for link in links:
                try:
                    whole, unread[link] = divmod(unread[link] + len(link.connection.socket.recv(65536)), answer)
                    link.connection.send(whole * claim)
                except BlockingIOError:
                    pass
        return refill
    return fill


def asked(stage, refill=None, pause=REFILL):
    """The honest peer's median, in us, while the bound is kept full"""
    stage.tell_to_ask(stage.honest, stage.source, ROUNDS)
    end = time.monotonic() + 60
    while (took := stage.honest.hear_now(pause)) is None and time.monotonic() < end:
        if refill:
            refill()
    assert took and took["rounds"] == ROUNDS and took["failed"] == took["wrong"] == 0, f"it is harmed: {took}"
    return took["median"]


def attacked(stage, unharmed, fill, pauses):
    """A row's figures"""
    worst = 0
    try:
        stage.open()
        refill = fill(stage)

        def ask():
            nonlocal worst
            median = asked(stage, refill, REFILL if pauses else 0)
            worst = max(worst, median)
            return median
        row = paired(lambda: asked(unharmed), ask)
        for link in list(Link.living):
            link.close()
        return row | {"worst": worst}
    finally:
        stage.close()


def measure(build, scratch, _):
    bounds = {"channels": fill_channels, "queue pairs": fill_queue_pairs, "granted windows": fill_grants,
              "unanswered requests": fill_unanswered, "key misses": fill_misses, "claims": fill_claims}
    floods = {"claims without pause": claims_without_pause(1),
              "claims without pause, 8 connections": claims_without_pause(8)}
    programs = (os.path.join(build, "test/liar/victim"), os.path.join(build, "preload/libadverb.so"),
                os.path.join(build, "test/loopback"), scratch)
    unharmed = Unharmed(*programs)
    unharmed.open()
    try:
        for name, fill in (bounds | floods).items():
            # Others than those before: what one has left behind is not the next one's.
            yield {"name": f"an honest peer's request, another at: {name}", "unit": "times",
                   "at_most": MOST,
                   **attacked(Sleepers(*programs), unharmed, fill, name in bounds)}
    finally:
        unharmed.close()
