#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""broker.py DIRECTORY-OF-LOOPBACK LIBADVERB BENCH_UNLOAD [--gate]: the host's broker as a process of its own, that
belongs to no program (README.md). --gate: only the cases whose verdict depends on no clock. Prints TAP."""

import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

LOOPBACK, LIBRARY, PROGRAM = (os.path.abspath(a) for a in sys.argv[1:4])
GATE = "--gate" in sys.argv[4:]
PORT = 7771
HANGS = 60 * (5 if os.environ.get("ADVERB_SANITIZER") else 1)  # seconds after which what has to come hangs
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "true"]
NO_CAPABILITIES = "0000000000000000"


def until(condition):
    """What it answers at last: true, or what it was when it hung"""
    end = time.monotonic() + HANGS
    while not (answer := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return answer


def status_of(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return dict(line.split(":", 1) for line in file.read().splitlines())


def brokers():
    """Those of this network namespace that run: a zombie is for whoever is the first process to reap"""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            if (words[1:2] == [b"broker"] and
                    os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")):
                found.append(int(pid))
        except OSError:
            pass
    return found


class Programs:
    """Runs pairs of processes that send each other requests on unpinned memory."""

    def __init__(self, scratch, link=None):
        self.scratch = scratch
        self.fabric = f"adverb-broker.{os.getpid()}"
        policy = os.path.join(scratch, "policy.json")
        with open(policy, "w", encoding="utf-8") as file:
            json.dump({"version": 1, "link": {"port": PORT, "broker": "process", **(link or {})}, "rules": [{"register": "none"}],
                       "log": {"file": os.path.join(scratch, "log.%p")}}, file)
        runtime = re.findall(r"(\S*lib[at]san\.so\S*) \(", subprocess.run(
            ["ldd", PROGRAM], capture_output=True, text=True, check=True).stdout)
        self.environment = {**os.environ, "LD_LIBRARY_PATH": LOOPBACK, "LD_PRELOAD": ":".join([*runtime, LIBRARY]),
                            "ADVERB_LOOPBACK_FABRIC": self.fabric, "ADVERB_POLICY": policy}
        self.running = []

    def idle(self):
        """A pair that is linked and then does nothing, until ended"""
        return self.begin("idle", "600")

    def busy(self):
        """A pair of which one asks the other all the time, until ended"""
        return self.begin("read", "8", "1", "1000000000")

    def begin(self, *what):
        pair = subprocess.Popen([PROGRAM, *what], env=self.environment, start_new_session=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.running.append(pair)
        return pair

    def work(self):
        """A pair that makes its links and does its work: why it did not, or nothing"""
        try:
            done = subprocess.run([PROGRAM, "read", "8", "1", "200"], env=self.environment, check=False,
                                  capture_output=True, text=True, timeout=HANGS)
        except subprocess.TimeoutExpired:
            return "it does not end"
        return "" if done.returncode == 0 else f"status {done.returncode}: {done.stderr}"

    def end(self, pair):
        self.running.remove(pair)
        for which in (signal.SIGCONT, signal.SIGKILL):
            os.killpg(pair.pid, which)
        pair.wait()

    def close(self):
        for pair in list(self.running):
            self.end(pair)
        path = "/dev/shm/" + self.fabric
        if os.path.exists(path):
            os.unlink(path)


def linked(pair):
    """Whether both of its processes have a member's connection: they have registered"""
    found = subprocess.run(["ss", "-xHp"], capture_output=True, text=True, check=True).stdout
    pids = {pair.pid, *children(pair.pid)}
    return len(pids) == 2 and all(f"pid={pid}," in found for pid in pids)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        return [int(word) for word in file.read().split()]


def started(programs):
    pair = programs.idle()
    assert until(lambda: len(brokers()) == 1 and linked(pair)), "no broker is there"
    return pair


def served_by(broker):
    """How many programs' links it has made, as it counts them"""
    command = os.path.join(os.path.dirname(LIBRARY), "tools/adverb")
    shown = subprocess.run([command, "stat", "-p", str(broker), "--json"], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)["counters"]["broker_served"]


def nobodys_child(programs):
    pair = started(programs)
    broker, = brokers()
    # It is followed before it has begun: who connects waits in the queue of its sockets.
    until(lambda: status_of(broker)["NoNewPrivs"].strip() == "1" and int(status_of(broker)["Threads"]) > 1)
    status = status_of(broker)
    descriptors = {os.readlink(f"/proc/{broker}/fd/{fd}") for fd in ("0", "1", "2")}
    with open(f"/proc/{broker}/environ", "rb") as file:
        variables = {v.split(b"=")[0] for v in file.read().split(b"\0") if v}
    assert broker not in children(pair.pid), "it is the program's child"
    assert os.getsid(broker) == broker, "it is in the program's session"
    assert descriptors == {"/dev/null"}, f"it has {descriptors}"
    assert variables <= {b"LISTEN_PID", b"LISTEN_FDS"}, f"it has {variables}"
    assert os.readlink(f"/proc/{broker}/cwd") == "/", "it holds the program's folder"
    for kind in ("CapPrm", "CapEff", "CapInh"):
        assert status[kind].strip() == NO_CAPABILITIES, f"{kind} is {status[kind]}"
    assert status["NoNewPrivs"].strip() == "1", "it may gain rights"
    for kind in ("SigBlk", "SigIgn"):  # it blocks those that it waits for
        assert int(status[kind], 16) & ~0x4003 == 0, f"{kind} is {status[kind]}"


def ends_with_the_last(programs):
    one, other = started(programs), programs.idle()
    assert until(lambda: linked(other))
    broker = brokers()
    programs.end(one)
    time.sleep(2)  # longer than a broker stays that has nobody
    assert brokers() == broker, "it went while a program was there"
    programs.end(other)
    assert until(lambda: not brokers()), "it stays"


def one_for_all(programs):
    pairs = [programs.idle() for _ in range(12)]
    assert until(lambda: all(linked(pair) for pair in pairs)), "not all have one"
    # Its sockets take connections before it is a process of this name.
    # And one that finds them taken ends.
    assert until(lambda: len(brokers()) == 1), f"there are {len(brokers())}"


def a_stopped_program(programs):
    pair = started(programs)
    broker, = brokers()
    # Not before: it might hold a lock of the loopback device, which is the whole host's.
    assert pair.stdout.readline() == b"idle\n"
    os.killpg(pair.pid, signal.SIGSTOP)
    before = served_by(broker)
    assert not (why := programs.work()), why
    assert brokers() == [broker] and served_by(broker) > before, "another one has made the links"


def a_killed_one(programs):
    pair = started(programs)
    for _ in range(3):
        was, = brokers()
        os.kill(was, signal.SIGKILL)
        # The first time another one is started; a program whose broker ended at once serves itself.
        assert until(lambda: linked(pair) and was not in brokers()), "its members have none"
        assert not (why := programs.work()), why
        assert until(lambda: len(brokers()) < 2), f"there are {len(brokers())}"
        if not brokers():
            break


def started_by_hand(programs):
    pair = started(programs)
    broker, = brokers()
    command = os.path.join(os.path.dirname(LIBRARY), "tools/adverb")
    done = subprocess.run([command, "broker", "--port", str(PORT)], capture_output=True, text=True, check=False,
                          timeout=HANGS)
    assert done.returncode == 1 and "end those first" in done.stderr, done.stderr
    programs.end(pair)
    assert until(lambda: broker not in brokers()), "it stays"
    with subprocess.Popen([command, "broker", "--port", str(PORT)], stdout=subprocess.PIPE) as by_hand:
        assert by_hand.stdout.readline().startswith(b"adverb broker: serving")
        assert not (why := programs.work()), why
        assert brokers() == [by_hand.pid], "another one was started"
        by_hand.terminate()
        assert by_hand.wait(HANGS) == 0


# Opens so many members' connections to the broker of all users, says how many are left, and keeps them.
FULL = """
import socket, sys, time
kept = []
for _ in range(6000):
    one = socket.socket(socket.AF_UNIX)
    try:
        one.connect("\\0adverb.broker.%d")
    except OSError:
        continue
    kept.append(one)
def stands(one):
    one.setblocking(False)
    try:
        return one.recv(1) != b"" and False
    except BlockingIOError:
        return True
    except OSError:
        return False
end = time.monotonic() + %d
while (stand := sum(map(stands, kept))) > %d and time.monotonic() < end:
    time.sleep(0.1)
print(stand, flush=True)
sys.stdin.read()
"""


MOST = 20000 // 8 // 2  # of one user, by the descriptors that the broker may have (link/bounds.h)


def one_user_does_not_fill_it(programs):
    if os.geteuid() != 0 or subprocess.run(NOBODY, check=False, capture_output=True).returncode != 0:
        return "needs root, and another user"
    command = os.path.join(os.path.dirname(LIBRARY), "tools/adverb")
    log = os.path.join(programs.scratch, "broker.log")
    many = ["prlimit", "--nofile=20000:20000"]
    with subprocess.Popen([*many, command, "broker", "--port", str(PORT), "--log", log], stdout=subprocess.PIPE) as by_hand:
        try:
            assert by_hand.stdout.readline().startswith(b"adverb broker: serving")
            with subprocess.Popen([*many, *NOBODY[:-1], sys.executable, "-c", FULL % (PORT, HANGS, MOST)], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE) as greedy:
                kept = int(greedy.stdout.readline())
                assert kept > 0, "its first connections are not kept"
                assert not (why := programs.work()), why
                assert brokers() == [by_hand.pid], "another one was started"
                with open(log, encoding="utf-8") as file:
                    text = file.read()
                said = re.search(r"user 65534 has (\d+) programs here, of (\d+) that there may be of all", text)
                assert said is not None, text[:300]
                its, room = map(int, said.groups())
                assert kept <= MOST == its == room / 2, f"one user has {kept} connections; {said[0]}"
                greedy.stdin.close()
        finally:
            by_hand.terminate()
        assert by_hand.wait(HANGS) == 0
    return None


def started_by_its_sockets(programs):
    """As systemd does it: root listens, and the broker that the first to come has started is nobody's"""
    command = os.path.join(os.path.dirname(LIBRARY), "tools/adverb")
    by = ["systemd-socket-activate", "-l", str(PORT), "-l", f"@adverb.broker.{PORT}"]
    if not shutil.which(by[0]):
        return "systemd-socket-activate is not here"
    if not os.access(command, os.X_OK) or subprocess.run(NOBODY, check=False, capture_output=True).returncode != 0:
        return "nobody may not run what is built here"
    with subprocess.Popen([*by, *NOBODY[:-1], command, "broker", "--port", str(PORT), "--unused", "1"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as waiting:
        try:
            listening = lambda: f"@adverb.broker.{PORT}" in subprocess.run(
                ["ss", "-xlH"], capture_output=True, text=True, check=True).stdout
            assert until(listening), "nobody listens"
            assert not (why := programs.work()), why
            assert brokers() == [waiting.pid], f"{brokers()} serve, not the one that has the sockets"
            assert status_of(waiting.pid)["Uid"].split()[1] == "65534", "it is not nobody's"
            assert until(lambda: waiting.poll() is not None), "it stays when it is not needed"
            assert waiting.returncode == 0, f"status {waiting.returncode}"
        finally:
            waiting.kill()
    return None


def what_it_says(programs):
    """It has no terminal: what it has to say stands where the program that started it writes"""
    pair = started(programs)
    broker, = brokers()
    assert until(lambda: "stopped" not in status_of(broker)["State"] and int(status_of(broker)["Threads"]) > 1)
    assert not (why := programs.work()), why  # it serves, so it has raised its limit
    subprocess.run(["prlimit", f"--pid={broker}", "--nofile=12:12"], check=True)
    strangers = []
    said = os.path.join(programs.scratch, f"log.{broker}")
    try:
        for _ in range(16):
            strangers.append(socket.create_connection(("127.0.0.1", PORT), timeout=HANGS))
        # It opens the file before it writes to it.
        assert until(lambda: os.path.exists(said) and os.path.getsize(said) > 0), "it says nothing"
    finally:
        for stranger in strangers:
            stranger.close()
    with open(said, encoding="utf-8") as file:
        text = file.read()
    assert "no descriptors left for connections" in text, f"it says: {text}"
    assert served_by(broker) > 0, "it counts no link"
    programs.end(pair)
    assert until(lambda: not brokers()), "it stays"
    left = [name for name in os.listdir("/dev/shm") if re.fullmatch(rf"adverb\.\d+\.{broker}\.\d+", name)]
    assert not left, f"it leaves {left}"


def peers_of(pid, *options):
    command = os.path.join(os.path.dirname(LIBRARY), "tools/adverb")
    shown = subprocess.run([command, "stat", "-p", str(pid), "--peers", *options], capture_output=True, text=True,
                           check=False)
    if "--json" not in options:
        return shown.stdout
    return json.loads(shown.stdout)["peers"] if shown.returncode == 0 else []  # it has used no device yet


def served(pid):
    """The peers that asked it for something and have been served"""
    return [peer for peer in peers_of(pid, "--json") if peer["role"] == "initiator" and peer["requests"] > 0]


def stat_shows_a_peer(programs, level, proven):
    pair = programs.busy()
    assert until(lambda: linked(pair))
    pids = [pair.pid, *children(pair.pid)]
    assert until(lambda: any(served(pid) for pid in pids)), f"nobody was served: {[peers_of(p) for p in pids]}"
    owner = next(pid for pid in pids if served(pid))
    peer, = served(owner)
    expected = {"address": "127.0.0.1", "level": level, "processes": 1, "links": 1, "channels": 1, "qps_bound": 1,
                "qps_proven": proven, "auth_failures": 0, "requests_unbound": 0, "malformed_messages": 0}
    assert until(lambda: all(served(owner)[0][name] == value for name, value in expected.items())), served(owner)
    assert not any(peer["bounds_hit"].values()), peer
    # The other one says the same of it, from its side.
    other, = (pid for pid in pids if pid != owner)
    asked = lambda: [(p["level"], p["links"], p["qps_proven"]) for p in peers_of(other, "--json") if p["role"] == "owner"]
    assert until(lambda: asked() == [(level, 1, proven)]), asked()
    table = peers_of(owner)
    assert "127.0.0.1" in table and level in table and peer["process"][:8] in table, table


def shows_a_peer_where(proof, *what):
    def case(programs):
        proving = Programs(programs.scratch, {"proof": proof})
        try:
            stat_shows_a_peer(proving, *what)
        finally:
            proving.close()
    return case


MAGIC, VERSION = 0x42564441, 2
HELLO, HELLO_ACK, AUTH, BANNER = 1, 2, 3, 12


def frame(kind, payload):
    return struct.pack("<IHHI", MAGIC, VERSION, kind, len(payload)) + payload


def hear(stranger):
    header = stranger.recv(12, socket.MSG_WAITALL)
    _, _, kind, length = struct.unpack("<IHHI", header)
    return kind, stranger.recv(length, socket.MSG_WAITALL)


def stat_shows_who_was_refused(programs):
    key = os.path.join(programs.scratch, "key")
    with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
        file.write("only these know it")
    keyed = Programs(programs.scratch, {"key_file": key})
    try:
        pair = keyed.busy()
        assert until(lambda: linked(pair))
        pids = [pair.pid, *children(pair.pid)]
        assert until(lambda: any(served(pid) for pid in pids)), "nobody was served"
        # Somebody who does not know the key asks for one queue pair after another, until one is somebody's.
        process = bytes(range(16))
        for number in range(2, 256):
            with socket.create_connection(("127.0.0.1", PORT), timeout=HANGS) as stranger:
                stranger.sendall(frame(HELLO, process + bytes(32) + struct.pack("<IIHHI", 1 << 14 | number, 0,
                                                                                VERSION, VERSION, 0)))
                kind, payload = hear(stranger)
                assert kind == BANNER
                kind, payload = hear(stranger)
                assert kind == HELLO_ACK
                answer, = struct.unpack_from("<I", payload, 64)
                if answer == 0:
                    stranger.sendall(frame(AUTH, bytes(32)))
                    assert stranger.recv(1) == b"", "it is not refused"
                    break
        else:
            raise AssertionError("no queue pair is anybody's")
        refused = lambda: [peer for pid in pids for peer in peers_of(pid, "--json")
                           if peer["process"] == process.hex() and peer["auth_failures"] == 1]
        assert until(refused), [peers_of(pid) for pid in pids]
        peer, = refused()
        assert (peer["role"], peer["level"], peer["links"], peer["qps_bound"]) == ("initiator", "none", 0, 0), peer
        honest = [peer for pid in pids for peer in served(pid)]
        assert honest and all(peer["level"] == "key" and peer["auth_failures"] == 0 for peer in honest), honest
    finally:
        keyed.close()


def doctor_is_answered(programs):
    """The steps that need no queue pair, with the broker that a program has started"""
    command = os.path.join(os.path.dirname(LIBRARY), "tools/adverb")

    def walk():
        done = subprocess.run([command, "doctor", "--peer", f"127.0.0.1:{PORT}", "--json"], capture_output=True,
                              text=True, check=False, env={**os.environ, "ADVERB_POLICY": programs.environment[
                                  "ADVERB_POLICY"]}, timeout=HANGS)
        start = "peer 127.0.0.1, "
        return {check["what"][len(start):]: (check["status"], check["finding"])
                for check in json.loads(done.stdout) if check["what"].startswith(start)}

    nobody = walk()
    assert nobody["connection"][0] == "FAIL" and "nothing serves port" in nobody["connection"][1], nobody
    assert all(nobody[step][0] == "-" for step in ("banner", "hello", "slot", "level")), nobody
    started(programs)
    steps = walk()
    assert all(steps[step][0] == "ok" for step in ("connection", "banner", "hello")), steps
    assert "no such queue pair" in steps["hello"][1], steps


stat_shows_a_vouched_peer = shows_a_peer_where("others", "vouched", 0)


def only_from_named_hosts(programs):
    """The policy names another host's address: this host's processes are let in all the same"""
    named = Programs(programs.scratch, {"allow": ["192.0.2.1"]})
    try:
        assert not (why := named.work()), why
    finally:
        named.close()


CASES = {
    "the broker is nobody's child and holds nothing of the program that started it": nobodys_child,
    "the broker ends when the last program has, not before": ends_with_the_last,
    "programs that start together have one broker": one_for_all,
    "links are made while the program that started the broker is stopped": a_stopped_program,
    "links are made after the broker was killed": a_killed_one,
    "a broker says what it cannot do, and what it has done, where who started it can see it": what_it_says,
    "adverb stat shows a peer whom the kernel vouches for": stat_shows_a_vouched_peer,
    "adverb stat shows a peer that has proven its queue pair": shows_a_peer_where("all", "host", 1),
    "a policy that names other hosts keeps this one's processes from nothing": only_from_named_hosts,
    "adverb stat shows a peer that was refused, and one that has the key": stat_shows_who_was_refused,
    "adverb doctor is answered by a broker, and says that nobody answers": doctor_is_answered,
    "a broker started by hand serves the programs that come after it": started_by_hand,
    "one user's connections do not fill a broker of all users": one_user_does_not_fill_it,
    "a broker started by systemd's sockets serves all, as nobody": started_by_its_sockets,
}
# Whatever else the machine does, what comes of these is the same.
IN_GATE = (nobodys_child, one_for_all, a_stopped_program, a_killed_one, stat_shows_a_vouched_peer, only_from_named_hosts)


def main():
    if os.environ.get("BROKER_INSIDE") is None:
        for network in (["unshare", "-n"], ["unshare", "-rn"]):
            if subprocess.run([*network, "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode == 0:
                os.environ["BROKER_INSIDE"] = "1"
                os.execvp(network[0], [*network, sys.executable, *sys.argv])
        print("ok - the broker's process # SKIP no network of its own can be had")
        return
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, case in CASES.items():
            if GATE and case not in IN_GATE:
                continue
            assert until(lambda: not brokers())
            programs = Programs(scratch)
            try:
                skip = case(programs)
                print(f"ok - {name}" + (f" # SKIP {skip}" if skip else ""), flush=True)
            except (AssertionError, OSError, ValueError) as why:
                print(f"not ok - {name}: {why or type(why).__name__}", flush=True)
            finally:
                programs.close()


main()
