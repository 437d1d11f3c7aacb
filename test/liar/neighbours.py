# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the liar tries to have all of, so that nobody who comes later has any. The floods go on while they come."""

import os
import socket
import threading

import options
import protocol as p
from attacks import HONEST, MINE, another_honest, device, of_honest, pair, pretend
from peer import MESSAGE, Link, until

NEWCOMERS = 3
ASKED = 4  # companions that a link of the flood has asked for and not been answered


def newcomers(stage):
    """Processes that come now, each with requests that want a link; prints how long the slowest of these took"""
    worst = max(another_honest(stage) for _ in range(NEWCOMERS))
    print(f"# first requests of newcomers: {worst / 1000:.0f} ms at most", flush=True)


class Flood:
    """A link, on an address of its own where the owner is on the loopback network, over which one companion after the
    other is asked for, for queue pairs that do not exist; `with` it, it goes on"""

    def __init__(self, stage):
        self.link = Link(device(), stage.PORT, stage.target["qpn"], source=source())
        pretend(self.link, stage)
        self.goes_on, self.why = True, None
        self.thread = threading.Thread(target=self.run)

    def ask(self):
        self.link.say("companion", handle=HONEST, nonce=os.urandom(16), qpn=0xABCDE, credits=8, protocol=p.TRANSFER,
                      protocol_version=2, message_max=MESSAGE, timeout=14)

    def run(self):
        try:
            for _ in range(ASKED):
                self.ask()
            while self.goes_on:
                self.link.connection.expect("companion_ack")
                self.ask()
        except Exception as why:  # pylint: disable=broad-exception-caught # told at the end
            self.why = why

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, why, trace):
        self.goes_on = False
        self.thread.join()


def source():
    """The address that strangers come from: not the honest initiator's where there is another"""
    return "127.0.0.5" if options.loopback else None


def flood_of_companions(stage):
    """24 links of a stranger's host, which ask as fast as they are answered"""
    with stage.watch() as watch:
        floods = [Flood(stage) for _ in range(max(24 // options.part, 4))]
        for flood in floods:
            flood.__enter__()
        try:
            newcomers(stage)
            watch.await_rounds()
        finally:
            for flood in floods:
                flood.__exit__(None, None, None)
        assert not [flood.why for flood in floods if flood.why], "a flood has come to its end"


def hog_of_companions(stage):
    """Who has proven one queue pair proves it over one link after the other, and opens as many companions over each as
    it may have; it keeps them all"""
    with stage.watch() as watch:
        theirs, mine = pair(stage)
        identity, opened = p.KeyPair(), 0
        for _ in range(max(22 // options.part, 4)):
            link = Link(device(), stage.PORT, theirs["qpn"], identity=identity)
            for handle in range(MINE, MINE + 64):
                assert link.bind(mine.number, handle).answer == p.OK
                if not link.companion(handle, receives=1):
                    break  # who asks again and again has to wait
                opened += 1
                link.prove_well(handle, stage.liars["key"], mine)
        assert opened > 64, f"only {opened} companions were opened"
        newcomers(stage)
        watch.expects("qps_proven", opened)
        mine.close()


def unread_answers(stage):
    """A hundred links that probe for a queue pair, as often as goes in, and take no answer"""
    with stage.watch():
        before, links = stage.owner.resident(), []
        probe = p.frame("probe", **of_honest(), sqpn=stage.source["qpn"], dqpn=stage.target["qpn"], handle=HONEST)
        for _ in range(max(100 // options.part, 10)):
            link = Link(device(), stage.PORT, stage.target["qpn"])
            links.append(link)
            link.connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            link.connection.socket.setblocking(False)
        many = probe * 1000
        for _ in range(120):
            for link in links:
                try:
                    link.connection.socket.send(many)
                except BlockingIOError:
                    pass
        newcomers(stage)
        grown = stage.owner.resident() - before
        assert grown < 16 << 20 or os.environ.get("ADVERB_SANITIZER"), f"the owner has grown by {grown >> 10} KiB"

        def clogged():
            return sum(row["bounds_hit"]["answers"] for row in stage.keeper.peers(stage.owner.pid))
        assert until(clogged, 30, 0.2), "nobody is said to take no answers"


ALL = {
    "who asks for companions without end keeps nobody out": flood_of_companions,
    "who has proven one queue pair has not all companions": hog_of_companions,
    "who takes no answers fills nobody's memory": unread_answers,
}
