# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Runs the suites on a finished build and reports; called by scripts/test."""

import argparse
import fnmatch
import os
import sys
import time

import host
import passed
import system
from results import FAILED, SKIPPED, Report, Result, forbid_skips, longest, summary

# In this order: what fails fast comes first, virtual hosts last.
SUITES = {
    "checks": host.run_folder,
    "unit": host.run_folder,
    "sim": host.run_folder,
    "abi": host.run_folder,
    "preload": host.run_folder,
    "loopback": host.run_folder,
    "loopback-asan": lambda s, c: host.run_sanitizer(s, c, "asan", "address,undefined"),
    "loopback-tsan": lambda s, c: host.run_sanitizer(s, c, "tsan", "thread"),
    "host": system.run_host,
    "kernel": system.run_kernel,
    "kernel-7.2": system.run_kernel_newest,
    "kernel-debug": system.run_kernel_debug,
    "system": system.run_system,
    "bench": host.run_bench,
}
GATE = ("checks", "unit", "sim", "abi", "preload", "loopback", "host")
# Slow, on a kernel that scripts/debug-kernel builds: run if asked for by name.
BY_NAME = {"kernel-debug"}


class Context:
    """What every suite needs to know of the run."""

    def __init__(self, options):
        self.times = {}  # (suite, test): seconds
        self.repo, self.build, self.patterns = options.repo, options.build, options.only
        self.named = bool(options.suite)                 # the suites were asked for by name
        self.gate = not (options.all or options.suite)   # only the tests of the gate
        self.suites = options.suite or [s for s in SUITES if s in GATE or (options.all and s not in BY_NAME)]
        self.logs = os.path.join(self.build, "test-logs")

    def tag(self, name):
        """The meson suite that a test is in besides its own if this run takes it; None: this run takes all."""
        return name if self.gate else None

    def took(self, suite, test, seconds):
        self.times[suite, test] = seconds

    def wanted(self, name):
        return not self.patterns or any(fnmatch.fnmatch(name, p) for p in self.patterns)

    def keep(self, suite, name, output):
        """Keeps a test's whole output where a person can find it after the run."""
        os.makedirs(self.logs, exist_ok=True)
        with open(os.path.join(self.logs, f"{suite}.{name}.log"), "w", encoding="utf-8") as log:
            log.write(output)


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/test")
    parser.add_argument("--repo", required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--suite", action="append", choices=list(SUITES), default=[])
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN")
    return parser.parse_args()


def run_suite(name, results, report):
    start = time.monotonic()
    print(f"== {name}", flush=True)
    try:
        for result in results:
            report.results.append(result)
            mark = {"passed": "ok", "failed": "FAIL", "skipped": "skip"}[result.outcome]
            print(f"{mark:<4} {result.name}{': ' + result.reason if result.reason else ''}", flush=True)
            # Here too, and not only at the end: a reader of one part of a long log reads this part.
            for line in result.diagnostics[-32:]:
                print(f"     {line}", flush=True)
    except Exception as error:  # a broken suite is a failed one, and no reason to leave out the others
        report.results.append(Result(name, name, FAILED, f"the suite itself broke: {error!r}"))
        print(f"FAIL {name}: {error!r}", flush=True)
    report.seconds[name] = time.monotonic() - start


def main():
    options = arguments()
    context = Context(options)
    began = passed.clean_commit(context.repo)
    report = Report()
    run_suite("build", host.build_programs(context, context.suites), report)
    for name in context.suites:
        results = SUITES[name](name, context)
        run_suite(name, forbid_skips(context.repo, results) if context.gate else results, report)

    failures = [r for r in report.results if r.outcome == FAILED]
    for result in failures:
        print(f"\n--- {result.suite}: {result.name}{': ' + result.reason if result.reason else ''}")
        print("\n".join(result.output.rstrip().splitlines()[-60:]))
    print("\n" + longest(context.times))
    print(summary(report), flush=True)
    # A run without a single test proves nothing.
    if failures or all(r.outcome == SKIPPED for r in report.results):
        return 1
    if context.gate and not context.patterns:
        passed.sign(context.repo, began)
    return 0


if __name__ == "__main__":
    sys.exit(main())
