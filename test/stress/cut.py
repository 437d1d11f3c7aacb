#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""cut.py PORT PID: ends each connection to PORT as a network does that gives it up, ten times a second (four
times under a sanitizer, where all takes longer), from one second after the first is there until process PID
ends. cut.py --can: whether that works here."""

import os
import socket
import subprocess
import sys
import time

EACH = 0.25 if os.environ.get("ADVERB_SANITIZER") else 0.1


def cut(port):
    """How many there were."""
    done = subprocess.run(["ss", "-KHtn", "state", "established", "dport", "=", f":{port}"], capture_output=True, text=True, check=False)
    return len(done.stdout.splitlines())


def can():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as client:
            cut(listener.getsockname()[1])
            client.settimeout(0.1)
            try:
                client.recv(1)
            except TimeoutError:
                return False
            except OSError:
                return True
    return False


def runs(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def main():
    if sys.argv[1:] == ["--can"]:
        return 0 if can() else 1
    port, pid = sys.argv[1], sys.argv[2]
    first = None
    while runs(pid):
        time.sleep(EACH)
        if first is None:
            there = subprocess.run(["ss", "-Htn", "state", "established", "dport", "=", f":{port}"], capture_output=True, text=True, check=False)
            first = time.monotonic() if there.stdout.strip() else None
        elif time.monotonic() - first > 1:
            cut(port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
