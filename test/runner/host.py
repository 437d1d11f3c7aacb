# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Suites that run on this machine: Catch2 programs, and folders of scripts that print TAP."""

import json
import os
import subprocess
import tempfile
from xml.etree.ElementTree import ParseError

import process
from results import FAILED, Result, from_junit, from_tap


def unit_programs(build):
    """(name, command, environment) of the meson tests of suite `unit`."""
    listing = subprocess.run(
        ["meson", "introspect", "--tests", build], check=True, capture_output=True, text=True)
    return [(t["name"], t["cmd"], t["env"]) for t in json.loads(listing.stdout)
            if any(s.split(":")[-1] == "unit" for s in t["suite"])]


def run_unit_program(suite, name, command, environment):
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        output, status = process.run([*command, "-r", "junit", "-o", report.name], 300, environment)
        try:
            results = from_junit(suite, name, report.read().decode(errors="replace"))
        except ParseError:
            results = []
    if status is None:
        return results + [Result(suite, name, FAILED, "timed out", output)]
    if status != 0 and not any(r.outcome == FAILED for r in results):
        return results + [Result(suite, name, FAILED, f"exit status {status}", output)]
    return results or [Result(suite, name, FAILED, "reported no test case", output)]


def run_unit(suite, context):
    for name, command, environment in unit_programs(context.build):
        yield from run_unit_program(suite, name, command, environment)


def run_scripts(suite, context, folder, build=None, environment=None):
    """Runs every script of test/`folder` against `build` (the run's own unless given)."""
    build = build or context.build
    for path in process.scripts_in(os.path.join(context.repo, "test", folder)):
        name = os.path.basename(path)
        if not context.wanted(name):
            continue
        timeout = float(process.headers(path).get("timeout", 300))
        output, status = process.run(
            [path], timeout, {"ADVERB_BUILD": build, "ADVERB_REPO": context.repo, **(environment or {})},
            cwd=context.repo)
        context.keep(suite, name, output)
        yield from from_tap(suite, name, output, status)


def run_sanitizer(suite, context, name, sanitizers):
    """The loopback suite once more, everything built with the given sanitizers."""
    if not process.scripts_in(os.path.join(context.repo, "test", "loopback")):
        return
    build = f"{context.build}-{name}"
    if not os.path.exists(os.path.join(build, "build.ninja")):
        output, status = process.run(
            ["meson", "setup", f"-Db_sanitize={sanitizers}", "-Db_lundef=false", build, context.repo], 300)
        if status != 0:
            yield Result(suite, "set up", FAILED, "meson setup", output)
            return
    output, status = process.run(["ninja", "-C", build], 3600)
    if status != 0:
        yield Result(suite, "build", FAILED, "ninja", output[-8000:])
        return
    yield from run_scripts(suite, context, "loopback", build, {
        "ADVERB_SANITIZER": name,
        "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "abort_on_error=1"),
        "UBSAN_OPTIONS": os.environ.get("UBSAN_OPTIONS", "halt_on_error=1:print_stacktrace=1"),
        "TSAN_OPTIONS": os.environ.get("TSAN_OPTIONS", "halt_on_error=1:second_deadlock_stack=1")})
