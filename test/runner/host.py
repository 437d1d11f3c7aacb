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
from results import FAILED, PASSED, Result, from_tap


# With TSan, the slowest: where threads meet. Of verify a few families only (test/verify/loopback.sh).
TSAN_TESTS = ("stress_*", "verify_*", "overlap_together_*", "overlap_alongside_*")
# ASan and UBSan compile optimized code for longer than the tests run.
OPTIMIZED = {"asan": 0, "tsan": 1}
# Programs of one thread each, most of them, or of processes that wait for each other more than they compute. With
# TSan a broker that has no processor to itself takes longer than programs wait for it.
AT_ONCE = {"unit": 2, "sim": 2, "loopback": 2, "loopback-asan": 2}
# Without adverb, or with most of their time in an interpreter: with ASan they would show little of ours.
NOT_ASAN = ("*_stock", "pyverbs", "loopback_perftest")
# Hours and ten minutes with a sanitizer; stress_reload_gate and stress_churn are the same in short.
TOO_LONG = ("stress_reload", "stress_churn_gate")


@functools.cache
def introspected(build, what):
    listing = subprocess.run(["meson", "introspect", f"--{what}", build], check=True, capture_output=True, text=True)
    return json.loads(listing.stdout)


def programs(build, suite, wanted=lambda name: True, tag=None):
    """The meson tests of `suite` whose names are wanted, and which are in the suite `tag` besides if there is one, as
    meson describes them."""
    def suites(test):
        return {s.split(":")[-1] for s in test["suite"]}
    return [t for t in introspected(build, "tests")
            if suites(t) >= {suite, *([tag] if tag else [])} and wanted(t["name"])]


def needed_by(build, tests):
    """What ninja has to make for these tests, and no more."""
    files = {t["id"]: t["filename"] for t in introspected(build, "targets")}
    targets = {i for test in tests for i in test["depends"]}
    return sorted(os.path.relpath(f, build) for i in targets for f in files[i])


def ninja(build, targets):
    """Makes the targets of `build`, none if there are none: (output, status)."""
    return process.run(["ninja", "-C", build, *targets], 7200) if targets else ("", 0)


def build_programs(context, suites):
    """Makes what the meson tests of these suites need and a plain build does not make."""
    tests = [t for suite in suites for t in programs(context.build, suite, context.wanted, context.tag("gate"))]
    output, status = ninja(context.build, needed_by(context.build, tests))
    if status != 0:
        yield Result("build", "build", FAILED, "ninja", output[-8000:])


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
        # What depends on time is tagged so, and no part of the gate.
        cases = ["~[timing]"] if context.gate else []
        results = run_catch2(suite, test["name"], [*before, *test["cmd"], *cases], timeout, environment)
    context.took(suite, test["name"], time.monotonic() - start)
    return results


def run_programs(suite, context, meson_suite=None, build=None, environment=None, wanted=None):
    """Runs the meson tests of a suite: Catch2 programs, and those that declare `protocol: 'tap'`."""
    # The last ones take longest: beside others, not behind them.
    tests = programs(build or context.build, meson_suite or suite, wanted or context.wanted, context.tag("gate"))[::-1]
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
        header = process.headers(path)
        if not context.wanted(name) or (context.gate and header.get("gate") != "yes"):
            continue
        start = time.monotonic()
        output, status = process.run(
            [path], float(header.get("timeout", 300)),
            {"ADVERB_BUILD": build, "ADVERB_REPO": context.repo, **(environment or {})}, cwd=context.repo)
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
        fits = one_of(TSAN_TESTS) if name == "tsan" else not one_of(NOT_ASAN)
        return fits and not one_of(TOO_LONG) and context.wanted(test)

    if not os.path.exists(os.path.join(build, "build.ninja")):
        output, status = process.run(
            ["meson", "setup", f"-Db_sanitize={sanitizers}", "-Db_lundef=false", f"-Doptimization={OPTIMIZED[name]}",
             build, context.repo], 300)
        if status != 0:
            yield Result(suite, "set up", FAILED, "meson setup", output)
            return
    process.run(["ninja", "-C", build, "build.ninja"], 300)  # of an older tree maybe: what tests there are
    tests = programs(build, "loopback", wanted)
    output, status = ninja(build, needed_by(build, tests))
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


def run_bench(suite, context):
    """All benches that count, against their bars. What depends on time is measured by hand: scripts/bench."""
    start = time.monotonic()
    output, status = process.run([os.path.join(context.repo, "scripts", "bench"), "all", "--check", "--quick"], 3600,
                                 {"ADVERB_BUILD": context.build}, cwd=context.repo)
    context.keep(suite, "all", output)
    context.took(suite, "all", time.monotonic() - start)
    if status == 0:
        yield Result(suite, "no counted row is beyond its bar", PASSED)
    else:
        yield Result(suite, "no counted row is beyond its bar", FAILED, f"exit status {status}", output)
