#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# timeout: 2400
"""clang-tidy 19 finds nothing in any file of ours that the build compiles, warnings being errors.

A file that passed is not asked again until something clang-tidy sees of it changes: the preprocessed
file, the text of ours in it (comments and directives count, and preprocessing drops them), the
configuration, its compile command or clang-tidy itself. What has passed is kept in the cache, and
forgotten when nobody asked for a month."""

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

# Options of GCC's that clang does not know.
GCC_ONLY = ("-Wno-maybe-uninitialized", "-Wno-stringop", "-Wno-array-bounds", "-static-lib", "-fno-gnu-unique",
            "-fsanitize=", "-Werror")
KEPT_SECONDS = 30 * 24 * 3600
# Options about outputs, and how many words follow each.
OUTPUTS = {"-c": 0, "-MD": 0, "-o": 1, "-MQ": 1, "-MF": 1}


def cache():
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.environ.get("ADVERB_CACHE") or os.path.join(home, "adverb")


def preprocessing(command):
    """The words that preprocess what `command` compiles, as clang-tidy's own front end does."""
    words = shlex.split(command)
    words = words[words[0].endswith("ccache") + 1:]
    kept = ["clang-19", "-E"]
    while words:
        word = words.pop(0)
        if word in OUTPUTS:
            del words[:OUTPUTS[word]]
        else:
            kept.append(word)
    return kept


def digest(entry, repo, shared):
    """Names all that clang-tidy's answer for the file depends on; None if it cannot be preprocessed."""
    done = subprocess.run(preprocessing(entry["command"]), cwd=entry["directory"], capture_output=True, check=False)
    if done.returncode != 0:
        return None
    state = hashlib.sha256(b"\0".join([shared.encode(), entry["command"].encode(), done.stdout]))
    # Paths in it are relative to the build directory: a tree elsewhere finds the same answers.
    seen = {os.path.realpath(os.path.join(entry["directory"], os.fsdecode(name)))
            for name in re.findall(rb'^# \d+ "([^"<]+)"', done.stdout, re.M)}
    for path in sorted(p for p in seen if p.startswith(repo + os.sep) and os.path.isfile(p)):
        with open(path, "rb") as file:
            state.update(os.path.relpath(path, repo).encode() + b"\0" + file.read() + b"\0")
    return state.hexdigest()


def check(entry, database, stamps, repo, shared):
    """(path, what clang-tidy said, or None when it passed)."""
    path = entry["file"]
    name = digest(entry, repo, shared)
    stamp = name and os.path.join(stamps, name)
    if stamp and os.path.exists(stamp):
        os.utime(stamp)
        return path, None
    done = subprocess.run(["clang-tidy-19", "--quiet", "-p", database, path],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return path, done.stdout + done.stderr
    if stamp:
        with open(stamp, "w", encoding="utf-8"):
            pass
    return path, None


def forget(stamps):
    for stamp in os.scandir(stamps):
        if stamp.stat().st_mtime < time.time() - KEPT_SECONDS:
            os.unlink(stamp)


def main():
    repo, build = os.environ["ADVERB_REPO"], os.environ["ADVERB_BUILD"]
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        commands = json.load(file)
    entries = {}
    for command in commands:
        path = os.path.realpath(os.path.join(command["directory"], command["file"]))
        # One compile of a file is enough, and what the build generated is its generator's business.
        if path.startswith(repo + os.sep) and not path.startswith(build + os.sep) and os.path.exists(path):
            words = [w for w in command["command"].split(" ") if not w.startswith(GCC_ONLY)]
            entries.setdefault(path, {**command, "file": path, "command": " ".join(words)})
    if not entries:
        print("not ok - clang-tidy has something to check: the build compiles nothing")
        return 1

    stamps = os.path.join(cache(), "tidy")
    os.makedirs(stamps, exist_ok=True)
    forget(stamps)
    with open(os.path.join(repo, ".clang-tidy"), encoding="utf-8") as file:
        shared = file.read()
    shared += subprocess.run(["clang-tidy-19", "--version"], capture_output=True, text=True, check=True).stdout
    failed = 0
    with tempfile.TemporaryDirectory() as database:
        with open(os.path.join(database, "compile_commands.json"), "w", encoding="utf-8") as file:
            json.dump(list(entries.values()), file)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            work = pool.map(lambda e: check(e, database, stamps, repo, shared), entries.values())
            for path, said in work:
                name = f"clang-tidy finds nothing in {os.path.relpath(path, repo)}"
                if said is None:
                    print(f"ok - {name}", flush=True)
                else:
                    failed += 1
                    print(f"not ok - {name}\n{said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
