#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# gate: yes
"""usage: prose.py [PAGE]...: pages are plain English (preload/README.md, "How pages are written"): in each, sentences
have 20 words in the mean, at most one in 20 has more than 35, and none begins with Who, Whoever or What. Tables, code
and headings are no sentences; an item of a list ends one. Without pages: README files, manual pages and protocols of
the repository."""

import re
import subprocess
import sys

MEAN, LONG, SHARE = 20, 35, 0.05
FEW = 10  # sentences; of fewer the mean says little, so one may be long


def markdown(text):
    """Paragraphs of a Markdown page."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"^```.*?^```", "\n", text, flags=re.S | re.M)
    paragraph = []
    for line in [*text.splitlines(), ""]:
        item = re.match(r"\s*(?:[-*]|\d+\.)\s+", line)
        # Indented lines are code, unless they go on with a paragraph or an item.
        skipped = re.match(r"\s*$|#|\|", line) or (not paragraph and not item and re.match(r"    |\t", line))
        if (skipped or item) and paragraph:
            yield " ".join(paragraph)
            paragraph = []
        if not skipped:
            paragraph.append(re.sub(r"^\s*(?:[-*]|\d+\.)\s+", "", line).strip())


def manual(text):
    """Paragraphs of a manual page; what stands in columns or is typed is none."""
    paragraph, off = [], False
    for line in [*text.splitlines(), ".PP"]:
        macro = re.match(r"\.(\w+)\s*(.*)", line)
        if macro and macro[1] in ("TS", "EX", "nf", "SY"):
            off = True
        elif macro and macro[1] in ("TE", "EE", "fi", "YS"):
            off = False
        elif line.startswith('.\\"') or off:
            continue
        elif macro and macro[1] in ("B", "I", "BR", "IR", "RB", "RI", "BI", "IB"):
            words = re.findall(r'"[^"]*"|\S+', macro[2])
            paragraph.append("".join(w.strip('"') for w in words) if len(macro[1]) == 2 else " ".join(words))
        elif macro:
            if paragraph:
                yield " ".join(paragraph)
            paragraph = []
            if macro[1] in ("TH", "SH", "SS", "TP", "in"):
                continue
        elif line.strip():
            paragraph.append(line.replace("\\-", "-").replace("\\&", ""))


def sentences(paragraphs):
    for paragraph in paragraphs:
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)  # of a link its words
        plain = re.sub(r"`[^`]*`", "X", plain)                       # code is one word
        plain = re.sub(r"\*+", "", plain)
        for sentence in re.split(r"(?<=[.!?])[\"')]*\s+(?=[A-Z0-9\"(])", plain):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if words:
                yield words


def objections(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    found = list(sentences(markdown(text) if path.endswith(".md") else manual(text)))
    if not found:
        return []
    said = []
    mean = sum(map(len, found)) / len(found)
    too_long = sorted((words for words in found if len(words) > LONG), key=len, reverse=True)
    if len(found) >= FEW and mean > MEAN:
        said.append(f"its sentences have {mean:.1f} words in the mean")
    if len(too_long) > max(SHARE * len(found), 1 if len(found) < FEW else 0):
        said += [f"{len(words)} words: {' '.join(words[:12])} ..." for words in too_long]
    said += [f"begins with {words[0]}: {' '.join(words[:12])} ..." for words in found
             if words[0] in ("Who", "Whoever", "What", "Who's", "What's") and not words[-1].endswith("?")]
    return said


def main():
    pages = sys.argv[1:] or subprocess.run(
        ["git", "ls-files", "--", "*.md", "*.1", "*.3", "*.7"], capture_output=True, text=True, check=True).stdout.split()
    failed = 0
    for page in pages:
        said = objections(page)
        failed += bool(said)
        print(f"{'not ok' if said else 'ok'} - {page} is plain English")
        for line in said:
            print(f"# {line}")
    if not pages:
        print("not ok - there are pages to read")
    return 1 if failed or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
