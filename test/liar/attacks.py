# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the liar tries on an owner, by the names of what they show."""

import os
import random
import resource
import selectors
import socket
import struct
import time

import pyverbs.enums as e

import options
import protocol as p
from peer import MESSAGE, SLOW, Connection, Device, Link, Queue, until
from victims import ALL as ALL_RIGHTS
from victims import ATOMIC, LIARS, LOCAL_WRITE, REMOTE_READ, SECRETS, Program

HONEST, MINE = 77, 5  # the liar's handles: for the honest initiator's queue pair, and for its own
GOOD = 0  # a completion's status
DEVICES = []


def device():
    if not DEVICES:
        DEVICES.append(Device())
    return DEVICES[0]


def pair(stage, domain=LIARS, rights=ALL_RIGHTS):
    """A queue pair of the owner's and one of the liar's, connected: the liar is a peer like others by these"""
    theirs, mine = stage.owner.qp(domain, rights), Queue(device())
    stage.owner.connect(theirs, mine)
    mine.connect(theirs["qpn"])
    return theirs, mine


def peer(stage, domain=LIARS):
    """A link over which the liar has proven a queue pair of its own, and that queue pair's user"""
    theirs, mine = pair(stage, domain)
    link = Link(device(), stage.PORT, theirs["qpn"])
    assert link.bind(mine.number, MINE).answer == p.OK
    link.own = mine
    link.queues.append(mine)
    link.queue = link.companion(MINE)
    link.prove_well(MINE, (stage.liars if domain == LIARS else stage.secret)["key"], mine)
    return link


def of_honest():
    """The addresses of the honest initiator's queue pair and its owner's"""
    return {"sgid": device().initiator.id, "dgid": device().owner.id}


def pretend(link, stage):
    """Binds the honest initiator's queue pair, by its numbers"""
    ack = link.bind(stage.source["qpn"], HONEST, stage.target["qpn"], **of_honest())
    assert ack.answer == p.OK and ack.proof == 1, ack
    return ack.remote_handle


def reply_to(queue, message, seconds=5):
    """The status of the reply; None: the companion has ended"""
    queue.send(message, 1)
    answer = queue.message(seconds)
    if answer is None:
        return None
    return p.REPLY.unpack(answer[:p.REPLY.size]).status


def steal(queue, target, source, stage, **other):
    """READs, WRITEs and borrows the secret over a companion: the statuses of the replies"""
    at, key = stage.secret["address"], stage.secret["key"]
    return [reply_to(queue, p.request(kind, target, source, at, length, key, payload, **other))
            for kind, length, payload in ((p.READ, 64, b""), (p.WRITE, 64, b"\xaa" * 64), (p.GRANT, 8, b""))]


def known(stage):
    """No attack: how the victims know each other"""
    assert stage.proven == (not options.vouches()), f"{stage.proven} queue pairs are proven at level {options.level}"


def unproven(stage):
    with stage.watch() as watch:
        link = Link(device(), stage.PORT, stage.target["qpn"])
        assert link.hello.answer == p.OK
        link.bind(stage.source["qpn"], HONEST)
        queue = link.companion(HONEST)
        assert steal(queue, link.handles[HONEST], HONEST, stage) == [p.NAK] * 3
        assert reply_to(queue, p.request(p.QUERY, link.handles[HONEST], HONEST, 0, 0, stage.secret["key"])) == p.NAK
        watch.expects("requests_unbound", 4, 4)


def wrong_numbers(stage):
    with stage.watch():
        link = Link(device(), stage.PORT, stage.target["qpn"])
        number, stranger = stage.source["qpn"], socket.inet_pton(socket.AF_INET6, "::ffff:10.1.2.3")
        cases = [("sqpn", p.MISMATCH, {"number": number + 1}),
                 ("sgid", p.MISMATCH, {"number": number, "sgid": stranger}),
                 ("dgid", p.NO_SUCH_QP, {"number": number, "dgid": stranger}),
                 ("dqpn", p.NO_SUCH_QP, {"number": number, "target": 0xABCDEF})]
        if options.other:  # the right numbers, on the other host
            cases += [("sgid of the owner", p.MISMATCH, {"number": number, "sgid": device().owner.id}),
                      ("dgid of the initiator", p.NO_SUCH_QP, {"number": number, "dgid": device().initiator.id})]
        for name, wanted, words in cases:
            ack = link.bind(handle=HONEST, **of_honest() | words)
            assert ack.answer == wanted and ack.remote_handle == 0, f"{name}: {ack}"
            assert link.claim(HONEST, stage.secret["key"]).answer == p.NO_SUCH_QP, name
            assert link.companion(HONEST) is None, name
            assert link.companions.pop(HONEST)[2].answer == p.NO_SUCH_QP, name


def foreign_handles(stage):
    with stage.watch() as watch:
        link = peer(stage)
        own = link.handles[MINE]
        read = p.request(p.READ, own, MINE, stage.liars["address"], 64, stage.liars["key"])
        assert reply_to(link.queue, read) == p.DONE
        honest = pretend(link, stage)
        refused = 0
        for target, source in ((honest, MINE), (honest, HONEST), (own, HONEST), *((honest, n) for n in range(1, 9))):
            assert steal(link.queue, target, source, stage) == [p.NAK] * 3, (target, source)
            refused += 3
        watch.expects("requests_unbound", refused, refused)
        # What may be said of a queue pair that is another's, and how it is answered.
        for handle in range(1, 65):
            if handle != MINE:
                link.say("unbind", handle=handle)
        for handle in (honest, 1, 2, 3):
            assert link.ask("claim", "slot", handle=handle, key=stage.secret["key"]).answer == p.NO_SUCH_QP
            link.companions[handle] = link.companions[MINE]
            assert link.prove(handle, os.urandom(32)).answer == p.NOT_THERE
        # Its own goes on, and reaches what is in its own domain alone.
        assert reply_to(link.queue, read) == p.DONE
        assert steal(link.queue, own, MINE, stage)[0] == p.NOT_VIRTUAL
        watch.expects("key_misses")


def wrong_proofs(stage):
    with stage.watch() as watch:
        theirs, mine = pair(stage)
        link = Link(device(), stage.PORT, theirs["qpn"])
        link.bind(mine.number, MINE)
        link.bind(mine.number, MINE + 1)
        queue = link.companion(MINE)
        key, nothing = stage.liars["key"], p.NOT_THERE

        def fails(name, mac, writes=True, **other):
            if writes:
                assert link.fill(MINE, mine) == GOOD
            ack = link.prove(MINE, mac, **other)
            assert ack.answer == nothing and ack.mac == bytes(32), f"{name}: {ack}"
            got = steal(queue, link.handles[MINE], MINE, stage)
            assert got == [p.NAK] * 3, f"{name}: {got}"

        slot = link.claim(MINE, key)
        fails("nothing written", link.proof(MINE)[0], writes=False)
        link.claim(MINE, key)
        fails("what is said and not written", link.proof(MINE)[0], writes=False, share=link.pairs[MINE].open)
        link.claim(MINE, key)
        fails("a random MAC", os.urandom(32))
        link.claim(MINE, key)
        fails("the owner's own MAC", link.proof(MINE)[1])
        other = link.claim(MINE + 1, key)
        slot = link.claim(MINE, key)
        assert slot.index != other.index
        assert link.fill(MINE, mine, other) == GOOD
        fails("what was written to another's slot", link.proof(MINE)[0], writes=False)
        slot = link.claim(MINE, key)
        fails("a MAC for another slot", link.proof(MINE, slot._replace(index=other.index))[0])
        link.claim(MINE, key)
        fails("another companion", link.proof(MINE)[0], companion_qpn=queue.number + 1)
        link.claim(MINE, key)
        fails("another identity", link.proof(MINE)[0], identity=p.KeyPair().open)
        watch.expects("auth_failures", 4)
        # Who has failed so often waits for the next slot, a second.
        assert until(lambda: link.claim(MINE, key).answer == p.OK, 5, 0.1), link.slots[MINE]
        # It says nothing of where its end is, so that the liar's could be anywhere.
        opened = link.companions[MINE]
        link.companion(MINE, opens=False)
        fails("a companion that nobody has opened", link.proof(MINE)[0])
        link.companions[MINE] = opened
        assert until(lambda: link.claim(MINE, key).answer == p.OK, 5, 0.1), link.slots[MINE]
        slot = link.slots[MINE]
        link.fill(MINE, mine)
        good, theirs_mac = link.proof(MINE)
        link.say("prove", handle=MINE, companion_qpn=queue.number, mac=good, identity=link.identity.open)
        assert link.connection.expect("prove_ack").mac == theirs_mac
        assert link.prove(MINE, good).answer == nothing, "a replayed proof"
        again = link.claim(MINE, key)
        link.fill(MINE, mine, share=link.pairs[MINE].open)
        assert again.share != slot.share and link.prove(MINE, good).answer == nothing, "a replayed proof"
        watch.expects("qps_proven", 1, 1)
        mine.close()


def slots_to_read(stage):
    """Of queue pairs that let nobody write: the slot holds the owner's key, or a word, and has to be read"""
    atomic = e.IBV_WR_ATOMIC_FETCH_AND_ADD
    for rights, kind in ((LOCAL_WRITE | REMOTE_READ, p.SLOT_READ), (LOCAL_WRITE | ATOMIC, p.SLOT_ATOMIC)):
        with stage.watch() as watch:
            theirs, mine = pair(stage, LIARS, rights)
            link = Link(device(), stage.PORT, theirs["qpn"])
            link.bind(mine.number, MINE)
            queue = link.companion(MINE)

            def claim():
                slot = link.claim(MINE, stage.liars["key"])
                assert slot.kind == kind and (slot.share == bytes(32)) == (kind == p.SLOT_READ), slot
                return slot

            def prove(slot, word=bytes(8)):
                return link.prove(MINE, link.proof(MINE, slot, word)[0], share=link.pairs[MINE].open)

            for guess in (p.KeyPair().open, bytes([9]) + bytes(31)):  # another's, and one that anybody knows
                slot = claim()
                ack = prove(slot._replace(share=guess) if kind == p.SLOT_READ else slot, guess[:8])
                assert (ack.answer, ack.mac) == (p.REFUSED, bytes(32)), ack
                assert steal(queue, link.handles[MINE], MINE, stage) == [p.NAK] * 3
            claim()
            ack = link.prove(MINE, os.urandom(32), share=bytes(32))
            assert (ack.answer, ack.mac) == (p.REFUSED, bytes(32)), ack
            watch.expects("auth_failures", 3, 3)
            slot = claim()
            at = p.slot_address(kind, slot.index)
            if kind == p.SLOT_READ:
                ack = prove(slot._replace(share=mine.read(32, at, slot.rkey)))
            else:
                ack = prove(slot, mine.read(8, at, slot.rkey, atomic))
            assert ack.answer == p.OK, ack
            watch.expects("qps_proven", 1, 1)
            # What may be read may not be written, nor the other way round.
            for opcode in {e.IBV_WR_RDMA_READ, atomic} - {e.IBV_WR_RDMA_READ if kind == p.SLOT_READ else atomic}:
                again, by = pair(stage)
                assert by.read(8, at, slot.rkey, opcode) is None, (again, opcode)
                by.close()
            again, by = pair(stage)
            assert by.write(bytes(32), at, slot.rkey) != GOOD, "a slot that is read can be written"
            by.close()
            mine.close()


def lent(stage):
    """A window that was lent for an atomic ends with what it was lent for"""
    with stage.watch() as watch:
        link = peer(stage)
        own, at, key = link.handles[MINE], stage.liars["address"], stage.liars["key"]
        theirs, mine = pair(stage)
        link.bind(mine.number, MINE + 1, theirs["qpn"])
        atomic = e.IBV_WR_ATOMIC_FETCH_AND_ADD

        def borrow(run):
            link.queue.send(p.request(p.GRANT, own, MINE, at, 8, key, run=run))
            return p.REPLY.unpack(link.queue.message()[:p.REPLY.size])
        window = borrow(1)
        assert window.status == p.DONE and window.grant_bytes >= 8, window
        assert mine.read(8, at, window.rkey, atomic) is not None, "what is lent cannot be used"
        watch.expects("responder_grants", 1, 1)
        taken = [borrow(2).status for _ in range(20)]
        assert taken[:15] == [p.DONE] * 15 and p.NAK in taken, taken
        link.say("unbind", handle=MINE)
        assert until(lambda: reply_to(link.queue, p.request(p.READ, own, MINE, at, 8, key, run=9)) == p.NAK, 5)
        assert mine.read(8, at, window.rkey, atomic) is None, "what was lent is not taken back"
        mine.close()


def foreign_slot(stage):
    """The slot of a queue pair of another domain cannot be written by one's own"""
    with stage.watch() as watch:
        link = peer(stage)
        pretend(link, stage)
        link.companions[HONEST] = link.companions[MINE]
        slot = link.claim(HONEST, stage.secret["key"])
        assert slot.answer == p.OK
        assert link.fill(HONEST, link.own) != GOOD, "a slot of another domain is written"
        ack = link.prove(HONEST, link.proof(HONEST)[0])
        assert ack.answer == p.NOT_THERE, ack
        assert steal(link.queue, link.handles[HONEST], HONEST, stage) == [p.NAK] * 3
        watch.expects("requests_unbound", 3, 3)


def displacement(stage):
    """A second client of the secret's own domain could write the slot"""
    with stage.watch() as watch:
        link = peer(stage, SECRETS)
        honest = pretend(link, stage)
        link.companions[HONEST] = link.companions[MINE]
        for identity in (link.identity, p.KeyPair()):
            link.identity = identity
            assert link.claim(HONEST, stage.secret["key"]).answer == p.OK
            assert link.fill(HONEST, link.own) == GOOD
            ack = link.prove(HONEST, link.proof(HONEST)[0])
            assert ack.answer == p.REFUSED and ack.mac == bytes(32), ack
            assert steal(link.queue, honest, HONEST, stage) == [p.NAK] * 3
        watch.expects("auth_failures", 2, 2)
        watch.expects("qps_proven", 1, 1)  # its own


def versions(stage):
    with stage.watch() as watch:
        log = stage.owner.log()
        link = Link(device(), stage.PORT, stage.target["qpn"], oldest=7, newest=9)
        assert (link.hello.answer, link.hello.oldest, link.hello.newest) == (p.WRONG_VERSION, 2, 2), link.hello
        assert link.hello.ticket == bytes(16) and link.connection.is_ended()
        watch.expects("hellos_refused", 1, 1)
        wanted = "a peer speaks versions 7 to 9 of adverb's links and this one 2 to 2"
        assert until(lambda: wanted in stage.owner.log()[len(log):], 5), stage.owner.log()[len(log):]
        link.close()
        for oldest, newest in ((3, 1), (0, 1), (3, 3), (2, 1), (0xFFFF, 2)):
            link = Link(device(), stage.PORT, stage.target["qpn"], oldest=oldest, newest=newest)
            assert (link.hello.answer, link.hello.oldest, link.hello.newest) == (p.WRONG_VERSION, 2, 2), link.hello
            assert link.connection.is_ended()
            link.close()
        watch.expects("hellos_refused", 6, 6)
        # A frame of another version is the broker's to refuse.
        before = stage.broker_counters()
        for version in (1, 7):
            connection = Connection.to(stage.PORT, device().owner.address)
            connection.send(p.frame("hello", version, dqpn=stage.target["qpn"], oldest=version, newest=version))
            ack = connection.expect("hello_ack")
            assert (ack.answer, ack.oldest, ack.newest) == (p.WRONG_VERSION, 2, 2), ack
            assert connection.is_ended()
            connection.close()
        after = stage.broker_counters()
        for name in ("broker_refused", "malformed_messages"):
            assert after[name] - before[name] >= 2, f"{name}: {after[name] - before[name]}"
        text = stage.keeper.log(stage.broker())
        assert "a peer speaks version 1 of adverb's links and this one 2 to 2" in text, text


def tickets(stage):
    with stage.watch() as watch:
        link = peer(stage)
        own, mine = link.handles[MINE], stage.liars
        read = p.request(p.READ, own, MINE, mine["address"], 64, mine["key"])

        def other():
            return Link(device(), stage.PORT, link.target)

        stranger = other()
        for ticket in (os.urandom(16), bytes(16), stranger.hello.ticket, link.hello.process):
            assert stranger.ask("resume", "resume_ack", ticket=ticket).answer == p.REFUSED
        # One that has bound already takes nothing over.
        stranger.bind(stage.source["qpn"], HONEST, stage.target["qpn"], **of_honest())
        assert stranger.ask("resume", "resume_ack", ticket=link.hello.ticket).answer == p.REFUSED
        assert reply_to(link.queue, read) == p.DONE
        stranger.close()
        # Its own, on two at once: the later one has it, and nothing is there twice.
        both = [other(), other()]
        for one in both:
            one.say("resume", ticket=link.hello.ticket)
        answers = [one.connection.expect("resume_ack").answer for one in both]
        assert answers == [p.OK, p.OK], answers
        ended = [one.connection.is_ended(0.3) for one in both]
        assert sorted(ended) == [False, True], ended
        assert link.connection.is_ended(0.3)
        assert reply_to(link.queue, read) == p.DONE
        assert steal(link.queue, own, MINE, stage)[0] == p.NOT_VIRTUAL
        watch.expects("links_resumed", 2, 2)
        for one in both:
            one.close()
        assert until(lambda: reply_to(link.queue, read, 0.1) is None, 5), "a channel is left without a link"


def another_honest(stage, seconds=5):
    """Whether somebody who comes now is served: a process of its own with a queue pair of the secret's domain"""
    program = Program(stage, stage.PORT, stage.asks)
    theirs, mine = stage.owner.qp(), program.qp()
    stage.owner.connect(theirs, mine)
    program.connect(mine, theirs)
    stage.tell_to_ask(program, mine, 3)
    took = program.hear_now(seconds * SLOW)
    program.end()
    assert took, f"another honest initiator is not served for {seconds} s"
    assert took["rounds"] == 3 and took["wrong"] == took["failed"] == 0, f"another honest initiator is harmed: {took}"
    return took["worst"]


def many_hellos(stage):
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with stage.watch() as watch:
        served = stage.broker_counters()["broker_served"]
        selector, open_now, answered = selectors.DefaultSelector(), set(), set()
        for n in range(1000):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex((device().owner.address, stage.PORT))
            open_now.add(sock)
            selector.register(sock, selectors.EVENT_WRITE)
        honest_asked, end = False, time.monotonic() + 20 * SLOW
        wanted = p.HEADER.size + p.BY_NAME["banner"].size
        while len(answered) < 1000 and time.monotonic() < end:
            for key, events in selector.select(0.5):
                sock = key.fileobj
                if events & selectors.EVENT_WRITE:
                    sock.send(p.frame("hello", process=os.urandom(16), nonce=os.urandom(16), dgid=device().owner.id,
                                      dqpn=stage.target["qpn"], oldest=2, newest=2))
                    selector.modify(sock, selectors.EVENT_READ)
                    continue
                try:
                    data = sock.recv(4096)
                except ConnectionError:
                    data = b""
                if not data or len(data) > wanted or data[6:8] == b"\x02\x00":
                    answered.add(sock)
                    selector.unregister(sock)
            if len(answered) > 100 and not honest_asked:
                honest_asked = True
                another_honest(stage)
        assert len(answered) == 1000, f"{1000 - len(answered)} hellos are neither answered nor refused"
        another_honest(stage)
        assert stage.broker_counters()["broker_served"] - served >= 1000
        for sock in open_now:
            sock.close()
        watch.rss = 32 << 20


def many_binds(stage):
    with stage.watch():
        link = Link(device(), stage.PORT, stage.target["qpn"])
        many, most = 5000 // options.part, 4096
        values = {**of_honest(), "dqpn": stage.target["qpn"], "patience": 1000 * SLOW}
        link.connection.send(b"".join(p.frame("bind", **values, sqpn=1, handle=n) for n in range(1, many + 1)))
        another_honest(stage)
        waited = [link.connection.expect("bind_ack").answer for _ in range(many)]
        # The same, all of them right.
        link.connection.send(b"".join(p.frame("bind", **values, sqpn=stage.source["qpn"], handle=n)
                                      for n in range(1, many + 1)))
        bound = [link.connection.expect("bind_ack").answer for _ in range(many)]
        for answers, wanted in ((waited, p.MISMATCH), (bound, p.OK)):
            assert answers.count(p.NO_RESOURCES) == max(many - most, 0) and answers.count(wanted) == min(many, most), \
                {a: answers.count(a) for a in set(answers)}


def many_companions(stage):
    with stage.watch() as watch:
        link = Link(device(), stage.PORT, stage.target["qpn"])
        pretend(link, stage)
        answers = [link.ask("companion", "companion_ack", handle=HONEST, nonce=os.urandom(16), qpn=0xABCDE, credits=8,
                            protocol=p.TRANSFER, protocol_version=2, message_max=MESSAGE, timeout=14).answer
                   for _ in range(100)]
        assert answers == [p.OK] * 64 + [p.NO_RESOURCES] * 36, answers
        another_honest(stage)
        watch.expects("companions", 64, 66)
        link.close()
        watch.rss = 64 << 20


def packet_address(stage, **other):
    """As preload/endpoint/endpoint.cpp has it, of the end where the honest queue pair's peer is"""
    values = {"magic": 0x41504441, "version": 1, "identity": 7, "chunk": 0, "gid": device().initiator.id, "qpn": 0xABCDE, "psn": 1,
              "qkey": 2, "lid": 0, "mtu": 5, "type": 3} | other
    return struct.pack("<IIQII16sIIIHBB40x", values["magic"], values["version"], values["identity"], values["chunk"], 0,
                       bytes(values["gid"]), *(values[name] for name in ("qpn", "psn", "qkey", "lid", "mtu", "type")))


def packet_companions(stage):
    """Addresses that lead nowhere, or to another host, make no companion that packets carry; and who asks for a hundred
    of those that do has as many as the budget for packets permits, and keeps nobody from having one of the other kind"""
    with stage.watch() as watch:
        link = Link(device(), stage.PORT, stage.target["qpn"])
        pretend(link, stage)

        def answer(address):
            return link.ask("packet_companion", "packet_companion_ack", handle=HONEST, nonce=os.urandom(16), qpn=0xABCDE,
                            credits=8, protocol=p.TRANSFER, protocol_version=2, message_max=MESSAGE, timeout=14,
                            address=address).answer

        wrong = [bytes(96), os.urandom(96), packet_address(stage, gid=os.urandom(16)), packet_address(stage, version=2),
                 packet_address(stage, chunk=4096), packet_address(stage, type=9), packet_address(stage, mtu=0)]
        if options.other:  # where the owner is, and the peer of that queue pair is not
            wrong.append(packet_address(stage, gid=device().owner.id))
        answers = [answer(address) for address in wrong]
        assert answers == [p.NO_RESOURCES] * len(wrong), answers
        answers = [answer(packet_address(stage)) for _ in range(100)]
        assert answers[0] == p.OK and set(answers) == {p.OK, p.NO_RESOURCES}, answers
        another_honest(stage)
        link.close()
        watch.rss = 64 << 20


def many_claims(stage):
    with stage.watch() as watch:
        link = Link(device(), stage.PORT, stage.target["qpn"])
        for handle in range(1, 201):
            link.say("bind", **of_honest(), sqpn=stage.source["qpn"], dqpn=stage.target["qpn"], handle=handle)
        for _ in range(200):
            assert link.connection.expect("bind_ack").answer == p.OK
        for handle in range(1, 201):
            link.say("claim", handle=handle, key=stage.secret["key"])
        slots = [link.connection.expect("slot") for _ in range(200)]
        got = [slot for slot in slots if slot.answer == p.OK]
        assert len(got) == 64 and {slot.answer for slot in slots} == {p.OK, p.NOT_THERE}, [s.answer for s in slots]
        another_honest(stage)
        # The same ones again and again: each that comes to nothing is one of eight in a second.
        for _ in range(20):
            link.say("claim", handle=1, key=stage.secret["key"])
        again = [link.connection.expect("slot").answer for _ in range(20)]
        assert p.NOT_THERE in again, again
        another_honest(stage)
        watch.expects("qps_proven", 0 if options.vouches() else 2)


def beyond_credits(stage):
    """The replies are taken, but not waited for"""
    with stage.watch():
        link = peer(stage)
        request = p.request(p.READ, link.handles[MINE], MINE, stage.liars["address"], 64, stage.liars["key"])
        many = 16 * link.queue.credits
        for _ in range(many):
            link.queue.post(request)

        def all_done():
            link.queue.poll()
            return len(link.queue.sent) == many
        assert until(all_done, 10), f"{many - len(link.queue.sent)} of {many} are neither taken nor refused"
        another_honest(stage)


def no_replies_taken(stage):
    """Who has proven nothing sends more than its credits over companions of its, and takes no reply: what waits for
    messages to answer by keeps the buffers that all companions have together"""
    with stage.watch():
        link = Link(device(), stage.PORT, stage.target["qpn"])
        pretend(link, stage)
        request = p.request(p.QUERY, link.handles[HONEST], HONEST, 0, 0, stage.secret["key"])
        for queue in [link.companion(HONEST, receives=0) for _ in range(4)]:
            # As many as are answered or kept: with one more it would be ended.
            for _ in range(3 * queue.credits + 3):
                queue.post(request)
        another_honest(stage)


def many_opened(stage):
    """Who has proven nothing opens companions over a few links, as many as each may have: the device's receives are
    used up, and who comes now gets none"""
    with stage.watch() as watch:
        watch.rss = 64 << 20
        links = []
        while len(links) < max(24 // options.part, 2):
            link = Link(device(), stage.PORT, stage.target["qpn"])
            links.append(link)
            pretend(link, stage)
            while link.companion(HONEST, receives=1):
                pass
            if len(link.queues) < 65:  # the last was refused
                break
        another_honest(stage)


def many_links(stage):
    """Who has proven nothing opens a companion over each of so many links that no other has room"""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
    stage.keeper.limit_descriptors(stage.owner.pid, 1024)  # what programs have mostly
    with stage.watch() as watch:
        watch.rss = 64 << 20
        links = []
        while len(links) < 520 // options.part:
            link = Link(device(), stage.PORT, stage.target["qpn"])
            links.append(link)
            if link.hello.answer != p.OK:
                break
            pretend(link, stage)
            link.companion(HONEST, receives=1)
        another_honest(stage)


def many_waits(stage):
    """Who knows no more than a number binds it from so many others that nobody else's bind is waited for"""
    with stage.watch() as watch:
        watch.rss = 64 << 20
        links = []
        for _ in range(max(17 // options.part, 2)):
            link = Link(device(), stage.PORT, stage.target["qpn"])
            links.append(link)
            values = {**of_honest(), "dqpn": stage.target["qpn"], "patience": 10000}
            link.connection.send(b"".join(p.frame("bind", **values, sqpn=1, handle=n) for n in range(1, 4097)))
        # The owner of who comes now is some instants late, as it may be.
        program = Program(stage, stage.PORT, stage.asks)
        theirs, mine = stage.owner.qp(), program.qp()
        program.connect(mine, theirs)
        stage.tell_to_ask(program, mine, 3)
        took = program.hear_now(0.3)
        assert not took, f"who is early is refused: {took}"
        stage.owner.connect(theirs, mine)
        took = program.hear_now(5 * SLOW)
        program.end()
        assert took and took["rounds"] == 3 and took["failed"] == 0, f"who is early is not served: {took}"


def claimed_keys(stage):
    """Who has proven nothing asks of the keys that will be handed out next"""
    with stage.watch() as watch:
        link = Link(device(), stage.PORT, stage.target["qpn"])
        pretend(link, stage)
        before = stage.owner.do("fresh", SECRETS, 1 << 14, 40)
        assert before["made"] == 40, before
        for first in range(256, 8192, 256 * options.part):
            keys = [before["key"] + options.step * n & 0xFFFFFFFF for n in range(first, first + 256)]
            link.connection.send(b"".join(p.frame("claim", handle=HONEST, key=key) for key in keys))
            for _ in keys:
                link.connection.expect("slot")
        after = stage.owner.do("fresh", SECRETS, 1 << 14, 400)
        assert after["made"] == 400, f"regions cannot be registered any more: {after}"
        assert watch.counted("regions_unpinned") == 440, f"{watch.counted('regions_pinned')} of 440 regions are pinned"


def keys_elsewhere(stage):
    """Of what a queue pair cannot reach it is said the same whether it is there or not"""
    with stage.watch():
        link = peer(stage)
        own = link.handles[MINE]

        def said(key):
            return [reply_to(link.queue, p.request(kind, own, MINE, stage.others["address"], length, key, run=run))
                    for run, (kind, length) in enumerate(((p.QUERY, 0), (p.READ, 64), (p.GRANT, 8)), next(runs))
                    ] + [link.ask("claim", "slot", handle=MINE, key=key).answer]
        runs = iter(range(1, 1 << 20, 10))
        nowhere = [said(0xDEADBE00 + n) for n in range(4)]
        assert all(one == nowhere[0] for one in nowhere), nowhere
        for name in ("others", "secret", "pinned"):
            answer = said(getattr(stage, name)["key"])
            assert answer == nowhere[0], f"{name}: {answer}, and of keys that are nowhere {nowhere[0]}"


def many_queries(stage):
    with stage.watch() as watch:
        link = peer(stage)
        own = link.handles[MINE]
        for n in range(1000 // options.part):
            assert reply_to(link.queue, p.request(p.QUERY, own, MINE, 0, 0, 0xDE000000 + n)) == p.NOT_VIRTUAL
        another_honest(stage)
        watch.rss = 8 << 20


def out_of_bounds(stage):
    """Well-formed requests of who is proven, for what is not its: refused one by one"""
    with stage.watch() as watch:
        link = peer(stage)
        own, mine, top = link.handles[MINE], stage.liars, (1 << 64) - 1
        at, key, size, run = mine["address"], mine["key"], mine["bytes"], 0

        def refused(name, kind, address, length, of, wanted=p.NAK, payload=b"", **other):
            nonlocal run
            run += 1
            other = {"run": run} | other
            answer = reply_to(link.queue, p.request(kind, own, MINE, address, length, of, payload, **other))
            assert answer == wanted, f"{name}: {answer}"

        for name, address, length in (("before", at - 1, 64), ("behind", at + size - 63, 64),
                                      ("far behind", at + size, 1), ("nowhere", 0, 64),
                                      ("wraps", top - 31, 64), ("ends at the top", top - 63, 64),
                                      ("the slots", p.SLOT_BASE, 64)):
            refused("READ " + name, p.READ, address, length, key)
            refused("WRITE " + name, p.WRITE, address, length, key, payload=b"\xaa" * length)
            refused("atomic " + name, p.GRANT, address + (56 if name == "behind" else 0), 8, key)
        for total in (size + 1, 1 << 31, 1 << 32, 1 << 63, top):
            refused("READ of more", p.READ, at, 64, key, total=total)
            refused("WRITE of more", p.WRITE, at, 64, key, payload=b"\xaa" * 64, total=total)
            refused("atomic of more", p.GRANT, at, 8, key, total=total)
        # A part inside the region, of a whole that begins before it, or wraps.
        refused("WRITE of a whole before", p.WRITE, at, 64, key, payload=b"\xaa" * 64, total_address=at - 64, total=256)
        refused("READ of a whole that wraps", p.READ, at, 64, key, total_address=(at - (1 << 63)) & top, total=top)
        refused("READ longer than a reply", p.READ, at, 8192, key)
        for name in ("secret", "others", "unreachable", "pinned"):
            region = getattr(stage, name)
            for kind, payload in ((p.READ, b""), (p.WRITE, b"\xaa" * 8), (p.GRANT, b"")):
                refused(name, kind, region["address"], 8, region["key"], p.NOT_VIRTUAL, payload)
        refused("WRITE to what is to be read", p.WRITE, stage.read_only["address"], 8, stage.read_only["key"],
                payload=b"\xaa" * 8)
        refused("an unknown kind", 99, at, 8, key, p.UNSUPPORTED)
        refused("an unknown version", p.READ, at, 8, key, p.UNSUPPORTED, version=7)
        watch.expects("responder_naks", run - 14)
        watch.expects("key_misses", 12, 12)
        for number in (0, 1, 2, top):
            refused("a window it never borrowed", p.RELEASE, number, 0, 0, p.DONE)
        # A run that has failed stays halted, and a higher one goes on.
        run -= 1
        refused("the run before", p.READ, at, 64, key, p.HALTED, run=1)
        refused("run 0", p.READ, at, 64, key, p.HALTED, run=0)
        assert reply_to(link.queue, p.request(p.READ, own, MINE, at, 64, key, run=(1 << 32) - 1)) == p.DONE
        assert reply_to(link.queue, p.request(p.READ, own, MINE, at, 0, key, run=(1 << 32) - 1)) == p.DONE


def malformed(stage):
    """What is no request at all ends the companion, and is carried out in no part"""
    with stage.watch() as watch:
        link = peer(stage)
        own, at, key = link.handles[MINE], stage.liars["address"], stage.liars["key"]
        good = p.request(p.WRITE, own, MINE, at, 8, key, b"\xaa" * 8)
        read = p.request(p.READ, own, MINE, at, 8, key)

        def write(**other):
            values = p.REQUEST.unpack(good[:p.REQUEST.size])._asdict() | other
            return p.REQUEST.pack(**values) + good[p.REQUEST.size:]

        cases = {
            "nothing but a kind": b"\1", "half a header": good[:40], "a header less a byte": read[:-1],
            "kind 0": write(kind=0), "kind 129": write(kind=129), "kind 255": write(kind=255), "zero": write(zero=1),
            "flags": write(flags=0x80), "fewer bytes than it says": good[:-1], "more bytes than it says": good + b"\0",
            "much more": good + bytes(100), "a length that is not there": write(length=1 << 20, total=1 << 20),
            "the longest length": write(length=(1 << 32) - 1, total=1 << 40),
            "a part before its whole": write(total_address=at + 8),
            "a part behind its whole": write(total_address=at - 8), "a whole shorter than its part": write(total=7),
            "a part that wraps": write(address=(1 << 64) - 4, total_address=8),
            "a READ with bytes": read + bytes(8),
            "a query with bytes": p.request(p.QUERY, own, MINE, 0, 0, key) + bytes(8),
            "two of two queue pairs": good + p.request(p.WRITE, own, MINE + 1, at, 8, key, b"\xaa" * 8),
            "two of two targets": good + p.request(p.WRITE, own + 1, MINE, at, 8, key, b"\xaa" * 8),
            "two, half of one": good + good[:-8], "two of no order": read + p.request(p.QUERY, own, MINE, 0, 0, key),
            "a notice of nothing": p.NOTICE.pack(kind=p.NOTICE_KIND, number=1),
            "a notice with keys": p.NOTICE.pack(kind=p.NOTICE_KIND, number=1, count=1) + bytes(4),
            "half a notice": p.NOTICE.pack(kind=p.NOTICE_KIND)[:5], "chance": random.Random(1).randbytes(500),
            "bits": b"\xff" * 1000,
        }
        for n, (name, message) in enumerate(options.some(cases.items()), 1):
            link.queue.send(message, 1)
            assert link.queue.message(0.05 / SLOW) is None, f"{name}: there is a reply"
            assert until(lambda: link.queue.send(read, 2) != GOOD, 5, 0.001), f"{name}: the companion goes on"
            watch.expects("malformed_messages", n, n)
            link.queue = link.companion(MINE)
            link.claim(MINE, key)
            link.fill(MINE, link.own)
            assert link.prove(MINE, link.proof(MINE)[0]).answer == p.OK, name
            assert reply_to(link.queue, read) == p.DONE


def without_key(stage):
    """Who has not the key is heard to in nothing but it"""
    with stage.watch() as watch:
        # What is said over it is the device's and of no use: a link that stands, and what it said to get there.
        own = Link(device(), stage.PORT, stage.target["qpn"])
        seen = p.know_key(options.key, b"i", own.nonce, own.hello.nonce)
        names = ("bind", "probe", "companion", "claim", "prove", "unbind", "resume")
        numbers = {"handle": HONEST, "sqpn": stage.source["qpn"], "dqpn": stage.target["qpn"],
                   "ticket": own.hello.ticket, "key": stage.secret["key"]}
        first = [(name, numbers) for name in names]
        macs = (os.urandom(32), bytes(32), seen, None)  # None: what the owner itself has shown
        for n, (name, values) in enumerate(first + [("auth", {"mac": mac}) for mac in macs], 1):
            connection = Connection.to(stage.PORT, device().owner.address)
            connection.send(p.frame("hello", process=os.urandom(16), nonce=own.nonce, dgid=device().owner.id,
                                    dqpn=stage.target["qpn"], oldest=2, newest=2))
            ack = connection.expect("hello_ack")
            known = {field: values[field] for field in values if field in p.BY_NAME[name].fields}
            if name == "auth":
                known = {"mac": known["mac"] or ack.mac}
            connection.send(p.frame(name, **known))
            assert connection.is_ended(), f"{name} is heard to"
            assert not connection.unread, f"{name} is answered"
            watch.expects("auth_failures", n, n)
            connection.close()
        silent = Connection.to(stage.PORT, device().owner.address)
        silent.send(p.frame("hello", process=os.urandom(16), dgid=device().owner.id, dqpn=stage.target["qpn"], oldest=2,
                            newest=2))
        silent.expect("hello_ack")
        assert silent.is_ended(), "who never shows the key is waited for"
        silent.close()


def many_without_key(stage):
    """Who has not the key opens ever more connections"""
    with stage.watch():
        connections = []
        for _ in range(600 // options.part):
            connections.append(Connection.to(stage.PORT, device().owner.address))
            connections[-1].send(p.frame("hello", process=os.urandom(16), dgid=device().owner.id, dqpn=stage.target["qpn"],
                                         oldest=2, newest=2))
        another_honest(stage)
        for connection in connections:
            connection.close()


ALL = {
    "the victims prove their queue pairs, but where the kernel vouches for them": known,
    "numbers alone bind a queue pair and open a companion, over which nothing is served": unproven,
    "wrong numbers bind nothing": wrong_numbers,
    "who is proven for one queue pair gets nothing by another's handles": foreign_handles,
    "a proof that is random, replayed, for another slot or of nothing is not believed": wrong_proofs,
    "a slot that is to be read is not guessed": slots_to_read,
    "what was lent ends with what it was lent for": lent,
    "a slot of another domain cannot be written": foreign_slot,
    "nobody takes the place of who has proven a queue pair first": displacement,
    "other versions are refused by what would do": versions,
    "tickets take nothing from others, and a channel has one link": tickets,
    "a thousand hellos at once": many_hellos,
    "five thousand binds": many_binds,
    "a hundred companions": many_companions,
    "companions that packets carry, to nowhere and a hundred": packet_companions,
    "two hundred claims": many_claims,
    "more messages than credits": beyond_credits,
    "a thousand queries of keys": many_queries,
    "what is out of bounds, of other domains or without rights is refused": out_of_bounds,
    "what is no request ends the companion, and is carried out in no part": malformed,
    "who takes no replies keeps no buffers from others": no_replies_taken,
    "who has proven nothing has not all receives": many_opened,
    "who has proven nothing has not all links": many_links,
    "who knows but a number has not all that wait": many_waits,
    "who has proven nothing keeps nobody's regions from being registered unpinned": claimed_keys,
    "of keys elsewhere nothing is said": keys_elsewhere,
}
# Those that need no flood and no bound on time: whatever else the machine does, what comes of them is the same.
GATE = (known, unproven, wrong_numbers, foreign_handles, wrong_proofs, foreign_slot, out_of_bounds, malformed)
# Of level "key", where the liar of all others is one of those who have it.
WITHOUT_KEY = {
    "who has not the key is heard to in nothing": without_key,
    "who has not the key keeps nobody out": many_without_key,
}
