# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a test said in TAP lines, and the summary of all."""

import fnmatch
import os
import re
from dataclasses import dataclass, field

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

TAP_LINE = re.compile(r"^(not ok|ok)\b(?: +[0-9]+)?(?: +-)? *(.*)$")
SKIP = re.compile(r"^(.*?) *# *SKIP\b[: ]*(.*)$", re.IGNORECASE)


@dataclass
class Result:
    """One test: its suite, name and outcome; `output` is what helps where it failed, `diagnostics` the
    comment lines that TAP puts after a failed test."""

    suite: str
    name: str
    outcome: str
    reason: str = ""
    output: str = ""
    diagnostics: list = field(default_factory=list)


@dataclass
class Report:
    """All results of a run and the wall-clock seconds of each suite."""

    results: list = field(default_factory=list)
    seconds: dict = field(default_factory=dict)

    def count(self, outcome, suite=None):
        return sum(r.outcome == outcome and suite in (None, r.suite) for r in self.results)


def from_tap(suite, script, output, status):
    """Results of a script that printed `output` and exited with `status` (None: timed out).

    A script that says nothing, or fails without naming a test, is a failure itself."""
    results = []
    after_failure = False
    for line in output.splitlines():
        match = TAP_LINE.match(line)
        if not match:
            if after_failure and line.startswith("#"):
                results[-1].diagnostics.append(line)
            continue
        after_failure = match.group(1) == "not ok"
        name = match.group(2)
        skip = SKIP.match(name)
        if match.group(1) == "not ok":
            name, _, reason = name.partition(": ")
            results.append(Result(suite, f"{script}: {name}", FAILED, reason, output))
        elif skip:
            results.append(Result(suite, f"{script}: {skip.group(1)}", SKIPPED, skip.group(2)))
        else:
            results.append(Result(suite, f"{script}: {name}", PASSED))
    failed = any(r.outcome == FAILED for r in results)
    if status is None:
        results.append(Result(suite, script, FAILED, "timed out", output))
    elif status == 77 and not results:
        last = output.strip().splitlines()[-1:] or ["exit status 77"]
        results.append(Result(suite, script, SKIPPED, last[0]))
    elif status != 0 and not failed:
        results.append(Result(suite, script, FAILED, f"exit status {status}", output))
    elif not results:
        results.append(Result(suite, script, FAILED, "reported no test", output))
    return results


def forbid_skips(repo, results):
    """`results`, in which a skip that test/may_skip does not list is a failure."""
    listed = []
    with open(os.path.join(repo, "test", "may_skip"), encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                suite, pattern, _ = (part.strip() for part in line.split("|", 2))
                listed.append((suite, pattern))
    for result in results:
        if result.outcome == SKIPPED and not any(
                result.suite == suite and fnmatch.fnmatch(result.name, pattern) for suite, pattern in listed):
            result.outcome, result.reason = FAILED, f"skipped, which test/may_skip does not allow: {result.reason}"
        yield result


def longest(times, most=12):
    """Where the time goes: what makes room for more tests."""
    ordered = sorted(times.items(), key=lambda entry: -entry[1])[:most]
    return "longest: " + ", ".join(f"{suite} {test} {seconds:.0f} s" for (suite, test), seconds in ordered) + "\n"


def summary(report):
    """What failed, the table and, as the last line, the counts a machine may read."""
    # Here too: who keeps the end of a long log alone shall know.
    lines = [f"FAILED {r.suite}: {r.name}: {r.reason}"[:400] for r in report.results if r.outcome == FAILED]
    lines += [""] if lines else []
    lines += [f"{'suite':<18}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}"]
    for suite, seconds in report.seconds.items():
        counts = [report.count(outcome, suite) for outcome in (PASSED, FAILED, SKIPPED)]
        lines.append(f"{suite:<18}{counts[0]:>8}{counts[1]:>8}{counts[2]:>9}{seconds:>9.0f}")
    totals = [report.count(outcome) for outcome in (PASSED, FAILED, SKIPPED)]
    lines.append("")
    lines.append(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped")
    return "\n".join(lines)
