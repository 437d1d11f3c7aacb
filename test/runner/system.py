# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The suites of virtual hosts: scripts of test/system and test/kernel inside scripts/vm, as many per
boot as want the same VM.

A script's header says what it wants:
  # vm: hosts=2 netem="delay 2ms" mem=4096    options of scripts/vm without the dashes
  # wrap: stock adverb                        run once with each; sets ADVERB_RUN (see below)
  # timeout: 120                              seconds the script may take on a host
  # kernel: debug                             for the debug kernel only
  # newest: yes                               on kernel 7.2 too in a run of all suites
  # long: yes                                 left out of a run of all suites, unless with --long
  # long: stock                               so under this wrap, which shows the programs and not adverb
Options this machine has no QEMU for skip the script.
On every host the script runs with WRAP (stock or adverb) and ADVERB_RUN (the words to put before a
program: none, or `adverb run --profile unpinned --`)."""

import os
import re
import shlex
import shutil
import tempfile
from dataclasses import dataclass

import process
from parallel import in_order
from results import FAILED, SKIPPED, Result, from_tap

WRAPS = {"stock": "", "adverb": "adverb run --profile unpinned --"}
BOOT_SECONDS = 60
# Of scripts/vm: this machine lacks what the options ask for; the batch itself never ends with it.
CANNOT = 77
# A host of it panicked or ended.
DIED = 125
# Virtual hosts of which each is busy on one processor at most.
AT_ONCE = 2
# What everything takes more of on the debug kernel.
SLOWNESS = 8


@dataclass
class Job:
    """One script under one wrap; `key` is its name in reports and result files."""

    path: str
    wrap: str
    options: tuple
    timeout: int
    key: str


def vm_options(header):
    """`hosts=2 netem="delay 2ms"` as scripts/vm takes it."""
    options = []
    for word in shlex.split(header):
        name, _, value = word.partition("=")
        options += [f"--{name}", value]
    return tuple(options)


def jobs_of(folder, context, kernel=None, also=None):
    """The scripts of test/`folder`, for `kernel` (None: the usual one); `also`: with this header only.
    And how many were left out because they are long."""
    jobs, left_out = [], 0
    for path in process.scripts_in(os.path.join(context.repo, "test", folder)):
        name = os.path.basename(path)
        header = process.headers(path)
        if header.get("kernel", kernel) != kernel or (also and also not in header):
            continue
        long = [] if context.long or context.named else header.get("long", "").split()
        options = vm_options(header.get("vm", "")) + (("--kernel", kernel) if kernel else ())
        timeout = int(header.get("timeout", 120)) * (SLOWNESS if kernel == "debug" else 1)
        wraps = header.get("wrap", "").split() or [""]
        for wrap in wraps:
            key = f"{name}.{wrap}" if wrap else name
            if not context.wanted(key):
                continue
            if "yes" in long or wrap in long:
                left_out += 1
            else:
                jobs.append(Job(path, wrap, options, timeout, key))
    return jobs, left_out


def say_left_out(suite, left_out):
    if left_out:
        yield Result(suite, f"{left_out} runs of scripts", SKIPPED,
                     f"long; scripts/test --long or --suite {suite} runs them")


def options_of(job):
    return dict(zip(job.options[::2], job.options[1::2]))


def hosts_of(job):
    return int(options_of(job).get("--hosts", 1))


def boot(context, jobs, share):
    """Runs `jobs` in one VM; every host writes KEY.HOST.out and KEY.HOST.status to `share`."""
    with open(os.path.join(share, "batch"), "w", encoding="utf-8") as batch:
        for job in jobs:
            words = [job.key, str(job.timeout), job.wrap, WRAPS.get(job.wrap, ""),
                     os.path.relpath(job.path, context.repo)]
            batch.write("\t".join(word or "-" for word in words) + "\n")
    slowness = SLOWNESS if options_of(jobs[0]).get("--kernel") == "debug" else 1
    limit = BOOT_SECONDS * slowness + sum(job.timeout + 5 for job in jobs)
    command = [os.path.join(context.repo, "scripts", "vm"), *jobs[0].options, "--timeout", str(limit),
               "--share", share, "--", "vm-batch"]
    return process.run(command, limit + 600, {"ADVERB_BUILD": context.build})


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return None


def judge(suite, job, share):
    """Results of a job that ran to its end on every host; None when it did not."""
    hosts = hosts_of(job)
    results, missing = [], False
    outputs = {h: read(os.path.join(share, f"{job.key}.{h}.out")) or "" for h in range(hosts)}
    everything = "\n".join(f"[{h}] {line}" for h in range(hosts) for line in outputs[h].splitlines())
    for host in range(hosts):
        status = read(os.path.join(share, f"{job.key}.{host}.status"))
        if status is None or not status.strip():
            missing = True
            continue
        name = job.key if hosts == 1 else f"{job.key}[{host}]"
        code = int(status)
        found = from_tap(suite, name, outputs[host], None if code == 124 else code)
        # The other host's half usually has the cause.
        for result in found:
            if result.outcome == FAILED and hosts > 1:
                result.output = everything
        # A host may leave all the reporting to the other.
        quiet = found and found[0].reason == "reported no test" and code == 0 and hosts > 1
        results += [] if quiet else found
    return None if missing else results or [Result(suite, job.key, FAILED, "reported no test", everything)]


def last_words(output):
    """What the consoles of a VM that died say of it, in a line: a log may keep no more than that."""
    said = re.findall(r"^vm: console \d+: (?:\[ *[\d.]+\] )?(.+)$", output, re.M)
    telling = [line for line in said if re.search(r"panic|BUG|WARNING|Oops|Out of memory|RIP:", line)]
    return "; ".join(line.strip()[:100] for line in telling[:3] or said[-1:]) or "its consoles are silent"


def run_batch(suite, context, jobs, may_die=False):
    """Runs jobs that want the same VM; one that kills its VM does not take the later ones with it.

    `may_die`: nothing of ours runs in its kernel. That of soft-RoCE has faults of its own, so a job under which a
    VM died is named, counted as skipped, and run once more."""
    again = set()
    while jobs:
        share = tempfile.mkdtemp(prefix="adverb-system.")
        try:
            os.chmod(share, 0o1777)
            output, status = boot(context, jobs, share)
            context.keep(suite, "vm", output)
            if status == CANNOT:
                for job in jobs:
                    yield Result(suite, job.key, SKIPPED, output.strip().splitlines()[-1].removeprefix("vm: "))
                return
            left = []
            for job in jobs:
                results = judge(suite, job, share)
                context.took(suite, job.key, float(read(os.path.join(share, f"{job.key}.0.seconds")) or 0))
                for host in range(hosts_of(job)):
                    context.keep(suite, f"{job.key}.{host}",
                                 read(os.path.join(share, f"{job.key}.{host}.out")) or "")
                if results is None:
                    left.append(job)
                else:
                    yield from results
            if left:
                # The first without a status is the one that was running.
                died = left[0]
                more = may_die and status == DIED and died.key not in again
                again.add(died.key)
                yield Result(suite, died.key, SKIPPED if more else FAILED,
                             f"the VM died (status {status}){', and it is run anew' if more else ''}: {last_words(output)}",
                             output[-6000:])
                left = left if more else left[1:]
            jobs = left
        finally:
            shutil.rmtree(share, ignore_errors=True)


def run_system(suite, context):
    jobs, left_out = jobs_of(suite, context)
    yield from say_left_out(suite, left_out)
    if not os.access(os.path.join(context.build, "preload", "tools", "adverb"), os.X_OK):
        for job in [j for j in jobs if j.wrap == "adverb"]:
            yield Result(suite, job.key, SKIPPED, "adverb is not built")
        jobs = [j for j in jobs if j.wrap != "adverb"]
    # Programs that wait for each other want all processors.
    yield from run_jobs(suite, context, jobs, may_die=True, at_once=1)


def run_kernel(suite, context):
    """Scripts of test/kernel, which need adverb.ko; a machine that could not build it skips them."""
    jobs, left_out = jobs_of(suite, context)
    yield from say_left_out(suite, left_out)
    skipped = read(os.path.join(context.build, "kernel", "skipped"))
    if skipped is not None:
        for job in jobs:
            yield Result(suite, job.key, SKIPPED, skipped.strip())
    else:
        yield from run_jobs(suite, context, jobs)


def run_on(suite, context, kernel, jobs, remedy):
    """The same scripts on another kernel; skipped where the kernel or its adverb.ko is not there."""
    cache = os.environ.get("ADVERB_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "adverb")
    release = read(os.path.join(cache, "kernels", kernel, "release"))
    if release is None:
        why = f"no kernel {kernel} in the cache; {remedy}"
    elif not os.path.exists(os.path.join(context.build, "kernel", release.strip(), "adverb.ko")):
        why = f"no adverb.ko for {release.strip()}; scripts/build says why"
    else:
        yield from run_jobs(suite, context, jobs)
        return
    for job in jobs:
        yield Result(suite, job.key, SKIPPED, why)


def run_kernel_newest(suite, context):
    """On the newest kernel: all scripts when asked for by name, else those that say so."""
    jobs, _ = jobs_of("kernel", context, "7.2", also=None if context.named else "newest")
    yield from run_on(suite, context, "7.2", jobs, "scripts/headers 7.2 fetches it")


def run_kernel_debug(suite, context):
    """The same scripts, and a few more, on a kernel that complains; it is built once, by hand."""
    jobs, _ = jobs_of("kernel", context, "debug")
    yield from run_on(suite, context, "debug", jobs, "scripts/debug-kernel builds it")


def run_jobs(suite, context, jobs, may_die=False, at_once=AT_ONCE):
    batches = {}
    for job in jobs:
        batches.setdefault(job.options, []).append(job)
    yield from in_order([lambda batch=batch: run_batch(suite, context, batch, may_die) for batch in batches.values()],
                        at_once)
