# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Suites that run on this machine: Catch2 programs, and folders of scripts that print TAP."""

import fnmatch
import functools
import json
import os
import subprocess
import tempfile
import time

import process
from parallel import in_order
from results import FAILED, Result, from_tap


# With TSan, the slowest: where threads meet. Of verify a few families only (test/verify/loopback.sh).
TSAN_TESTS = ("stress_*", "verify_*", "overlap_together_*", "overlap_alongside_*")
# Programs of one thread each, most of them, or of processes that wait for each other more than they compute. With
# TSan a broker that has no processor to itself takes longer than programs wait for it.
AT_ONCE = {"unit": 2, "sim": 2, "loopback": 2, "loopback-asan": 2}
# Without adverb, or with most of their time in an interpreter: with ASan they would show little of ours.
NOT_ASAN = ("*_stock", "pyverbs", "loopback_perftest")


def programs(build, suite, wanted=lambda name: True):
    """The meson tests of `suite` whose names are wanted, as meson describes them."""
    listing = subprocess.run(
        ["meson", "introspect", "--tests", build], check=True, capture_output=True, text=True)
    return [t for t in json.loads(listing.stdout)
            if any(s.split(":")[-1] == suite for s in t["suite"]) and wanted(t["name"])]


def needed_by(build, suite, wanted):
    """What ninja has to make for these tests of `suite`, and no more: a sanitizer's build is slow."""
    listing = subprocess.run(
        ["meson", "introspect", "--targets", build], check=True, capture_output=True, text=True)
    files = {t["id"]: t["filename"] for t in json.loads(listing.stdout)}
    targets = {i for test in programs(build, suite, wanted) for i in test["depends"]}
    return sorted(os.path.relpath(f, build) for i in targets for f in files[i])


def run_catch2(suite, name, command, timeout, environment):
    """Every test case of a Catch2 program, as its listener wrote them (test/unit/tap_listener.h)."""
    with tempfile.NamedTemporaryFile(suffix=".tap", mode="r", errors="replace") as cases:
        output, status = process.run(command, timeout, {**environment, "ADVERB_TAP_FILE": cases.name})
        results = from_tap(suite, name, cases.read(), 0)
    for result in results:
        if result.outcome == FAILED:
            result.output = output
    if status is None:
        return results + [Result(suite, name, FAILED, "timed out", output)]
    if status != 0 and not any(r.outcome == FAILED for r in results):
        return results + [Result(suite, name, FAILED, f"exit status {status}", output)]
    return results


@functools.cache
def machine_of_its_own():
    """The words before a command that give it a machine of its own: network, processes, shared memory. What two
    tests of the loopback device start then never meets, though it has the same addresses, ports and queue pair
    numbers; and nothing of it outlives its test. No words where this machine gives no such thing."""
    inside = 'mount -t tmpfs tmpfs /dev/shm && ip link set lo up || exit 125; "$@"; exit $?'
    for users in ([], ["-r"]):
        words = ["unshare", *users, "-n", "-p", "-m", "--fork", "--kill-child", "--mount-proc",
                 "sh", "-c", inside, "sh"]
        if process.run([*words, "true"], 30)[1] == 0:
            return words
    return []


def run_program(suite, context, test, environment, before=()):
    # Meson's own limits are for an idle machine.
    timeout = 3 * float(test["timeout"] or 300)
    environment = {**test["env"], **environment}
    start = time.monotonic()
    if test["protocol"] == "tap":
        output, status = process.run([*before, *test["cmd"]], timeout, environment)
        context.keep(suite, test["name"], output)
        results = from_tap(suite, test["name"], output, status)
    else:
        results = run_catch2(suite, test["name"], [*before, *test["cmd"]], timeout, environment)
    context.took(suite, test["name"], time.monotonic() - start)
    return results


def run_programs(suite, context, meson_suite=None, build=None, environment=None, wanted=None):
    """Runs the meson tests of a suite: Catch2 programs, and those that declare `protocol: 'tap'`."""
    # The last ones take longest: beside others, not behind them.
    tests = programs(build or context.build, meson_suite or suite, wanted or context.wanted)[::-1]
    at_once, before = AT_ONCE.get(suite, 1), ()
    if (meson_suite or suite) == "loopback":
        before = machine_of_its_own()
        at_once = at_once if before else 1
    yield from in_order(
        [lambda test=test: run_program(suite, context, test, environment or {}, before) for test in tests], at_once)


def run_scripts(suite, context, folder, build=None, environment=None):
    """Runs every script of test/`folder` against `build` (the run's own unless given)."""
    build = build or context.build
    for path in process.scripts_in(os.path.join(context.repo, "test", folder)):
        name = os.path.basename(path)
        if not context.wanted(name):
            continue
        timeout = float(process.headers(path).get("timeout", 300))
        start = time.monotonic()
        # What can take less time where it is one of many does.
        hurry = {} if context.named else {"ADVERB_ALL_SUITES": "1"}
        output, status = process.run(
            [path], timeout, {"ADVERB_BUILD": build, "ADVERB_REPO": context.repo, **hurry, **(environment or {})},
            cwd=context.repo)
        context.keep(suite, name, output)
        context.took(suite, name, time.monotonic() - start)
        yield from from_tap(suite, name, output, status)


def run_folder(suite, context):
    """A suite of this machine whole: what meson calls by its name, and the scripts of its folder."""
    yield from run_programs(suite, context)
    yield from run_scripts(suite, context, suite)


def run_sanitizer(suite, context, name, sanitizers):
    """The loopback suite once more, what it needs built with the given sanitizers."""
    build = f"{context.build}-{name}"

    def wanted(test):
        def one_of(patterns):
            return any(fnmatch.fnmatch(test, pattern) for pattern in patterns)
        return (one_of(TSAN_TESTS) if name == "tsan" else not one_of(NOT_ASAN)) and context.wanted(test)

    if not os.path.exists(os.path.join(build, "build.ninja")):
        output, status = process.run(
            ["meson", "setup", f"-Db_sanitize={sanitizers}", "-Db_lundef=false", "-Doptimization=1",
             build, context.repo], 300)
        if status != 0:
            yield Result(suite, "set up", FAILED, "meson setup", output)
            return
    process.run(["ninja", "-C", build, "build.ninja"], 300)  # of an older tree maybe: what tests there are
    needed = needed_by(build, "loopback", wanted)
    # Without a name ninja would make everything.
    output, status = process.run(["ninja", "-C", build, *needed], 3600) if needed else ("", 0)
    if status != 0:
        yield Result(suite, "build", FAILED, "ninja", output[-8000:])
        return
    environment = {
        "ADVERB_SANITIZER": name,
        "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "abort_on_error=1"),
        "UBSAN_OPTIONS": os.environ.get("UBSAN_OPTIONS", "halt_on_error=1:print_stacktrace=1"),
        "TSAN_OPTIONS": os.environ.get("TSAN_OPTIONS", "halt_on_error=1:second_deadlock_stack=1:"
                                       "die_after_fork=0")}  # cases fork: a daemon, a killed peer
    yield from run_programs(suite, context, "loopback", build, environment, wanted)
    yield from run_scripts(suite, context, "loopback", build, environment)
