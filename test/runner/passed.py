# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The file `passed` in the cache: one line for each commit that a whole run of the gate has passed on, in any clone."""

import os
import subprocess
import sys
import time


def git(repo, *words):
    done = subprocess.run(["git", "-C", repo, *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def clean_commit(repo):
    """The full hash of the commit that `repo` holds; None if files differ from it or there is no git."""
    return git(repo, "rev-parse", "HEAD") if git(repo, "status", "--porcelain") == "" else None


def sign(repo, began):
    """Appends the commit to the file if `repo` held it, clean, when the run began and holds it still."""
    commit = clean_commit(repo)
    if commit is None or commit != began:
        print("not signed: the tree is no clean commit", file=sys.stderr)
        return
    cache = os.environ.get("ADVERB_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "adverb")
    os.makedirs(cache, exist_ok=True)
    with open(os.path.join(cache, "passed"), "a", encoding="utf-8") as file:
        file.write(f"{commit} {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n")
