# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""System calls of processes that run already, between two instants, by perf's tracepoints."""

import os
import signal
import subprocess
import tempfile

# The loopback device moves bytes by these (process_vm_readv, process_vm_writev) and wakes its threads by futex, where
# a device needs none.
OF_DEVICE = "id != 310 && id != 311 && id != 202"
# All that adverb says over sockets (sendto, sendmsg): to peers, to the broker, and from it. Tracepoints of their own
# are not in every kernel.
SENDS = "id == 44 || id == 46"


class Counted:
    """`with` it what these processes call is counted: `calls`, of these `sends`. Raises where perf may not count."""

    def __init__(self, pids):
        self.pids, self.calls, self.sends = pids, None, None

    def __enter__(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.out, control, told = (os.path.join(self.scratch.name, name) for name in ("out", "control", "told"))
        for fifo in (control, told):
            os.mkfifo(fifo)
        # Open for both: else each end waits for the other to come, and one that failed never does.
        self.control, self.told = (open(os.open(fifo, os.O_RDWR), "r+b", buffering=0) for fifo in (control, told))
        events = [word for which in (OF_DEVICE, SENDS) for word in ("-e", "raw_syscalls:sys_enter", "--filter", which)]
        try:
            self.perf = subprocess.Popen(["perf", "stat", "-x,", "-o", self.out, "-D", "-1", "--control",
                                          f"fifo:{control},{told}", *events, "-p", ",".join(map(str, self.pids))],
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except OSError:
            self.perf = None
            return self
        os.set_blocking(self.told.fileno(), False)
        self.say(b"enable\n")
        return self

    def say(self, what):
        """And waits until it is done, or perf has ended"""
        self.control.write(what)
        heard = b""
        while b"ack\n" not in heard and self.perf.poll() is None:
            try:
                self.perf.wait(0.01)
            except subprocess.TimeoutExpired:
                heard += self.told.read(16) or b""

    def __exit__(self, *_):
        said = "it does not start"
        if self.perf:
            if self.perf.poll() is None:
                self.say(b"disable\n")
                self.perf.send_signal(signal.SIGINT)  # it writes what it has counted
            self.perf.wait(60)
            said = "it has written nothing"
            if os.path.exists(self.out):
                with open(self.out, encoding="utf-8") as file:
                    said = file.read()
            counts = [line.split(",")[0] for line in said.splitlines() if "sys_enter" in line]
            if len(counts) == 2 and all(map(str.isdigit, counts)):
                self.calls, self.sends = map(int, counts)
        self.control.close()
        self.told.close()
        self.scratch.cleanup()
        if self.calls is None:
            raise RuntimeError(f"perf counts no system calls here: {said.strip()}")
