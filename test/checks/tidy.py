#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# timeout: 7200
"""clang-tidy 19 finds nothing in any file of ours that the build compiles, warnings being errors.

A file that passed is not asked again until something clang-tidy sees of it changes: the file, what it
includes, the configuration, its compile command or clang-tidy itself. What has passed is kept in the
cache, and forgotten when nobody asked for a month.

Where that is nothing yet, all of it takes 25 minutes of two processors: it is no part of the gate."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

# Options of GCC's that clang does not know.
GCC_ONLY = ("-Wno-maybe-uninitialized", "-Wno-stringop", "-Wno-array-bounds", "-static-lib", "-fno-gnu-unique",
            "-fsanitize=", "-Werror")
KEPT_SECONDS = 30 * 24 * 3600


def cache():
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.environ.get("ADVERB_CACHE") or os.path.join(home, "adverb")


def dependencies(build):
    """What each object was compiled from when it was built last: {object: [path]}, as ninja keeps it."""
    said = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in said.splitlines():
        if line.startswith("    "):
            found[target].append(line.strip())
        elif ": #deps " in line:
            target = line.partition(": #deps ")[0]
            found[target] = []
    return found


class Contents:
    """Digests of files; each is read once."""

    def __init__(self):
        self.known = {}

    def of(self, path):
        if path not in self.known:
            with open(path, "rb") as file:
                self.known[path] = hashlib.sha256(file.read()).digest()
        return self.known[path]


def digest(entry, sources, contents, repo, shared):
    """Names all that clang-tidy's answer for the file depends on; None if that is not known, and the file is
    asked each time."""
    if sources is None:
        return None
    state = hashlib.sha256(b"\0".join([shared.encode(), entry["command"].encode()]))
    for source in sources:
        path = os.path.realpath(os.path.join(entry["directory"], source))
        # A tree elsewhere finds the same answers.
        name = os.path.relpath(path, repo) if path.startswith(repo + os.sep) else path
        try:
            state.update(b"\0" + name.encode() + b"\0" + contents.of(path))
        except OSError:  # the build is older than the tree
            return None
    return state.hexdigest()


def check(entry, name, database, stamps):
    """(path, what clang-tidy said, or None if it passed)."""
    path = entry["file"]
    stamp = name and os.path.join(stamps, name)
    if stamp and os.path.exists(stamp):
        os.utime(stamp)
        return path, None
    done = subprocess.run(["clang-tidy-19", "--quiet", "-p", database, path],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return path, done.stdout + done.stderr or "it says nothing"
    if stamp:
        with open(stamp, "w", encoding="utf-8"):
            pass
    return path, None


def forget(stamps):
    for stamp in os.scandir(stamps):
        if stamp.stat().st_mtime < time.time() - KEPT_SECONDS:
            os.unlink(stamp)


def compiled(command, preload):
    """The (path, compile command) of what this entry compiles: itself, or the sources behind a file of
    preload/unity.py's, each as if it were compiled by itself."""
    path = os.path.realpath(os.path.join(command["directory"], command["file"]))
    behind = []
    if re.search(r"\.\d+\.cpp$", path) and os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            behind = [os.path.join(preload, source) for source in re.findall(r'^#include "(.+\.cpp)"$', file.read(), re.M)]
    for source in behind or [path]:
        yield source, command["command"].replace(command["file"], source)


def main():
    repo, build = os.environ["ADVERB_REPO"], os.environ["ADVERB_BUILD"]
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        commands = json.load(file)
    entries = {}
    for command in commands:
        for path, words in compiled(command, os.path.join(repo, "preload")):
            # One compile of a file is enough, and what the build generated is its generator's business.
            if path.startswith(repo + os.sep) and not path.startswith(build + os.sep) and os.path.exists(path):
                words = [w for w in words.split(" ") if not w.startswith(GCC_ONLY)]
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
    sources, contents = dependencies(build), Contents()
    failed = 0
    with tempfile.TemporaryDirectory() as database:
        with open(os.path.join(database, "compile_commands.json"), "w", encoding="utf-8") as file:
            json.dump(list(entries.values()), file)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            work = pool.map(lambda e: check(e, digest(e, sources.get(e["output"]), contents, repo, shared),
                                            database, stamps),
                            entries.values())
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
