# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The suites of virtual hosts: scripts of test/system and test/kernel inside scripts/vm, as many per
boot as want the same VM.

A script's header says what it wants:
  # vm: hosts=2 netem="delay 2ms" mem=4096    options of scripts/vm without the dashes
  # wrap: stock adverb                        run once with each; sets ADVERB_RUN (see below)
  # timeout: 120                              seconds the script may take on a host
  # kernel: debug                             for the debug kernel only
  # newest: yes                               on kernel 7.2 too in a run of all suites
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
from host import ninja
from parallel import in_order
from results import FAILED, SKIPPED, Result, from_tap

WRAPS = {"stock": "", "adverb": "adverb run --profile unpinned --"}
BOOT_SECONDS = 60
# Of scripts/vm: this machine lacks what the options ask for; the batch itself never ends with it.
CANNOT = 77
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
    """The scripts of test/`folder`, for `kernel` (None: the usual one); `also`: with this header only."""
    jobs = []
    for path in process.scripts_in(os.path.join(context.repo, "test", folder)):
        name = os.path.basename(path)
        header = process.headers(path)
        if header.get("kernel", kernel) != kernel or (also and also not in header):
            continue
        options = vm_options(header.get("vm", "")) + (("--kernel", kernel) if kernel else ())
        timeout = int(header.get("timeout", 120)) * (SLOWNESS if kernel == "debug" else 1)
        wraps = header.get("wrap", "").split() or [""]
        for wrap in wraps:
            key = f"{name}.{wrap}" if wrap else name
            if context.wanted(key):
                jobs.append(Job(path, wrap, options, timeout, key))
    return jobs


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


def run_batch(suite, context, jobs):
    """Runs jobs that want the same VM; one that kills its VM does not take the later ones with it."""
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
                yield Result(suite, left[0].key, FAILED, f"the VM died (status {status}): {last_words(output)}",
                             output[-6000:])
            jobs = left[1:]
        finally:
            shutil.rmtree(share, ignore_errors=True)


def run_system(suite, context):
    """Scripts of test/system. Programs that wait for each other want all processors, so one VM at a time."""
    yield from run_jobs(suite, context, jobs_of(suite, context), at_once=1)


def run_host(suite, context):
    """Scripts of test/host, all in one boot: adverb.ko and programs together."""
    yield from run_with_modules(suite, context, jobs_of(suite, context), "6.12")


def run_kernel(suite, context):
    """Scripts of test/kernel, which need adverb.ko."""
    yield from run_with_modules(suite, context, jobs_of("kernel", context), "6.12")


def run_kernel_newest(suite, context):
    """On the newest kernel: all scripts when asked for by name, otherwise those that say so."""
    jobs = jobs_of("kernel", context, "7.2", also=None if context.named else "newest")
    yield from run_with_modules(suite, context, jobs, "7.2")


def run_kernel_debug(suite, context):
    """The same scripts, and a few more, on a kernel that complains; scripts/debug-kernel builds it once, by hand."""
    yield from run_with_modules(suite, context, jobs_of("kernel", context, "debug"), "debug")


def run_with_modules(suite, context, jobs, kernel):
    """Runs `jobs`, or skips them where adverb.ko of `kernel` cannot be built: kernel/build says why."""
    output, status = ninja(context.build, [f"kernel/built-{kernel}"] if jobs else [])
    if status != 0:
        yield Result(suite, "build", FAILED, f"modules for {kernel}", output[-8000:])
        return
    why = read(os.path.join(context.build, "kernel", f"skipped-{kernel}"))
    if why is None:
        yield from run_jobs(suite, context, jobs)
        return
    for job in jobs:
        yield Result(suite, job.key, SKIPPED, why.strip())


def run_jobs(suite, context, jobs, at_once=AT_ONCE):
    batches = {}
    for job in jobs:
        batches.setdefault(job.options, []).append(job)
    yield from in_order([lambda batch=batch: run_batch(suite, context, batch) for batch in batches.values()], at_once)
