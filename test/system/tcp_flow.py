#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""tcp_flow.py PORT: takes one connection's bytes. tcp_flow.py PORT ADDRESS SECONDS: sends for so long, and prints the
MiB/s that the peer has acknowledged in the middle of that, from a third to two."""

import fcntl
import socket
import struct
import sys
import termios
import time

MIB = 1 << 20


def serve(port):
    with socket.create_server(("", port)) as listener:
        one = listener.accept()[0]
    into = bytearray(MIB)
    while one.recv_into(into):
        pass


def unacknowledged(one):
    """Bytes in the queue of what is sent, or under way"""
    return struct.unpack("i", fcntl.ioctl(one, termios.TIOCOUTQ, b"\0" * 4))[0]


def send(port, address, seconds):
    one = socket.create_connection((address, port))
    data = bytes(MIB // 16)
    begin = time.monotonic()
    sent, marks = 0, []
    while (now := time.monotonic()) < begin + seconds:
        if now >= begin + (1 + len(marks)) * seconds / 3:
            marks.append((now, sent - unacknowledged(one)))
        sent += one.send(data)
    print(f"{(marks[1][1] - marks[0][1]) / (marks[1][0] - marks[0][0]) / MIB:.2f}")
    one.close()


if len(sys.argv) > 2:
    send(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
else:
    serve(int(sys.argv[1]))
