#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""replay.py DEVICE EACH SECONDS: sends every EACHth RoCE frame that leaves DEVICE once more, SECONDS later, until it is
terminated. Prints how many then."""

import collections
import select
import signal
import socket
import struct
import sys
import time

ETH_P_IP = 0x0800
PACKET_OUTGOING = 4
ROCE_PORT = 4791
device, each, later = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
over = False


def is_roce(frame):
    """IPv4 without options, UDP"""
    return len(frame) > 42 and frame[14] == 0x45 and frame[23] == 17 and struct.unpack_from("!H", frame, 36)[0] == ROCE_PORT


def end(*_):
    global over
    over = True


def main():
    signal.signal(signal.SIGTERM, end)
    # What a packet socket has sent does not come back to it. Outgoing frames are seen by sockets of all protocols only.
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    wire.bind((device, 3))
    wire.setblocking(False)
    kept = collections.deque()
    seen = sent = 0
    while not over:
        wait = max(0.0, kept[0][0] - time.monotonic()) if kept else 1.0
        if select.select([wire], [], [], min(wait, 1.0))[0]:
            frame, address = wire.recvfrom(16384)
            if address[2] == PACKET_OUTGOING and is_roce(frame):
                seen += 1
                if seen % each == 0:
                    kept.append((time.monotonic() + later, frame))
        while kept and kept[0][0] <= time.monotonic():
            try:
                wire.send(kept.popleft()[1])
                sent += 1
            except OSError:
                pass  # the device's queue is full
    print(sent)


main()
