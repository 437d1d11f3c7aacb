#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# timeout: 2400
"""clang-tidy 19 finds nothing in any file of ours that the build compiles, warnings being errors.

A file that passed is not asked again until it, a header of ours, the configuration, its compile
command or clang-tidy itself changes: the stamps are kept in the build directory."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

# Options of GCC's that clang does not know.
GCC_ONLY = ("-Wno-maybe-uninitialized", "-Wno-stringop", "-Wno-array-bounds", "-static-lib", "-fno-gnu-unique",
            "-fsanitize=", "-Werror")


def digest(paths, *words):
    state = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            state.update(path.encode() + b"\0" + file.read())
    for word in words:
        state.update(word.encode() + b"\0")
    return state.hexdigest()


def check(entry, database, stamps, shared):
    """(relative path, what clang-tidy said, or None when it passed)."""
    path = entry["file"]
    stamp = os.path.join(stamps, digest([path], shared, entry["command"]))
    if os.path.exists(stamp):
        return path, None
    done = subprocess.run(["clang-tidy-19", "--quiet", "-p", database, path],
                          capture_output=True, text=True, check=False)
    if done.returncode == 0:
        with open(stamp, "w", encoding="utf-8"):
            pass
        return path, None
    return path, done.stdout + done.stderr


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

    stamps = os.path.join(build, "tidy-stamps")
    os.makedirs(stamps, exist_ok=True)
    headers = subprocess.run(["git", "-C", repo, "ls-files", "-z", "*.h", "*.def", ".clang-tidy"],
                             capture_output=True, text=True, check=True).stdout.split("\0")
    version = subprocess.run(["clang-tidy-19", "--version"], capture_output=True, text=True, check=True).stdout
    paths = [os.path.join(repo, h) for h in headers if h]
    shared = digest([p for p in paths if os.path.exists(p)], version)
    failed = 0
    with tempfile.TemporaryDirectory() as database:
        with open(os.path.join(database, "compile_commands.json"), "w", encoding="utf-8") as file:
            json.dump(list(entries.values()), file)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            work = pool.map(lambda e: check(e, database, stamps, shared), entries.values())
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
