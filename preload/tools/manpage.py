#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Writes adverb-policy(5) from the policy's schema.

usage: manpage.py OUTPUT SCHEMA PROFILE...
"""

import json
import pathlib
import sys

HEAD = r""".\" SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
.\" Made by manpage.py from the policy's schema.
.TH ADVERB\-POLICY 5 "" adverb "File Formats"
.SH NAME
adverb\-policy \- what adverb changes, and for which programs
.SH DESCRIPTION
A policy is a JSON object in a file of its own.
A program gets the first of these that there is:
.IP \(bu 2
the policy that
.B ADVERB_POLICY
names, by a path or by the name of a profile;
.IP \(bu 2
.IR $XDG_CONFIG_HOME/adverb/policy.json ;
.IP \(bu 2
.IR /etc/adverb/policy.json ;
.IP \(bu 2
the default that is built into adverb.
.PP
Policies are not merged.
.PP
The file must belong to root or to the user, and nobody else may be able to write it.
A key that adverb does not know, a key given twice and a rule that can never fire are errors.
.B adverb policy check
reports all of them.
If the policy has an error,
.B adverb run
starts nothing, and adverb changes nothing in a program that is started otherwise.
.PP
A program that runs obeys a change of its file, too.
Each key below says what of a change takes effect at once, and what does not.
If the changed file has errors, the log names them and the policy that was in force stays.
The backend of a region never changes.
Profiles and the built-in default cannot change, and neither can a policy that changes nothing:
programs under it run without adverb.
Rules keep their counters
.RB ( "adverb stat" )
as long as they keep their names.
.PP
Sizes are strings such as "64KiB", with B, KiB, MiB, GiB or TiB.
Address ranges are written "10.0.0.0/8" or "fe80::/10", and memory addresses "0x7f0000000000".
Patterns are those of the shell: *, ?, [a-z], [!a-z].
Every object may hold a
.B $comment
(a string or a list of strings).
"""

TAIL_RULES = r"""Rules are tried from first to last.
For each action, the first rule that matches and sets it decides.
Without such a rule, regions are pinned, peers are asked and order is strict, and the NIC carries
requests to pinned regions.
"""

TAIL = r""".SH EXAMPLE
This policy pins only the small regions of a database, and leaves the rest of the host alone:
.PP
.RS
.EX
{
  "version": 1,
  "rules": [
    { "name": "mydb", "match": { "program": "mydb*" }, "peers": "auto" },
    { "name": "small", "match": { "program": "mydb*", "max_size": "1MiB" },
      "register": "pinned" },
    { "name": "large", "match": { "program": "mydb*" }, "register": "none" },
    { "name": "others", "register": "pinned", "peers": "none" }
  ]
}
.EE
.RE
.SH SEE ALSO
.BR adverb (1),
.BR adverb\-differences (7),
.BR adverb\-limits (7),
.BR adverb\-security (7)
"""


def roff(text):
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return r"\&" + text if text[:1] in (".", "'") else text


def sentences(text):
    return "\n".join(roff(line) for line in text.replace(". ", ".\n").split("\n"))


class Page:
    def __init__(self, schema):
        self.schema = schema
        self.lines = []

    def resolve(self, part):
        if "$ref" not in part:
            return part
        target = self.schema["definitions"][part["$ref"].rsplit("/", 1)[1]]
        return {**self.resolve(target), **{k: v for k, v in part.items() if k != "$ref"}}

    def value(self, part):
        """What may stand behind the key, in a few words."""
        part = self.resolve(part)
        if "const" in part:
            return json.dumps(part["const"])
        if "enum" in part:
            return " | ".join(json.dumps(word) for word in part["enum"])
        if "oneOf" in part:
            first, other = part["oneOf"]
            return self.value(first) + (", or a list" if other["type"] == "array" else f" or {self.value(other)}")
        if part["type"] == "array":
            return f"list of {self.value(part['items'])}" if "items" in part else "list"
        names = {"adverb-size": "size", "adverb-duration": "duration", "adverb-cidr": "address range",
                 "adverb-path": "path", "adverb-address": "address", "adverb-pointer": "memory address"}
        return names.get(part.get("format"), part["type"])

    def key(self, name, part):
        part = self.resolve(part)
        value = roff(self.value(part)).replace('"', r"\(dq")
        self.lines += [".TP", f'.BR "{roff(name)}" ": {value}"', sentences(part["description"])]
        notes = []
        if "default" in part:
            word = part["default"]
            notes.append(f"Default: {word if isinstance(word, str) else json.dumps(word)}.")
        if "x-minimum" in part or "minimum" in part:
            notes.append(f"Least: {part.get('x-minimum', part.get('minimum'))}.")
        if "x-maximum" in part or "maximum" in part:
            notes.append(f"Most: {part.get('x-maximum', part.get('maximum'))}.")
        if "x-actions" in part:
            notes.append(f"Only for rules that set {' or '.join(part['x-actions'])}.")
        if "x-reload" in part:
            notes.append({"now": "A change takes effect at once.",
                          "new": "A change takes effect for what the program makes from then on.",
                          "restart": "A change takes effect when the program starts anew."}
                         [part["x-reload"]])
        if "x-later" in part:
            notes.append(f"Known but not available yet: {', '.join(part['x-later'])}.")
        self.lines += [roff(note) for note in notes]

    def keys(self, part, wanted=lambda part: True):
        for name, child in self.resolve(part)["properties"].items():
            if not name.startswith("$") and wanted(self.resolve(child)):
                self.key(name, child)

    def objects(self, part):
        """The keys of match that are objects, each with a section of its own."""
        for name, child in self.resolve(part)["properties"].items():
            if self.resolve(child).get("properties") is not None:
                self.section("SS", f"{name} of match")
                self.keys(child)

    def section(self, kind, title):
        self.lines.append(f'.{kind} "{title}"')


def main(output, schema_path, *profiles):
    schema = json.loads(pathlib.Path(schema_path).read_text(encoding="utf-8"))
    page = Page(schema)
    rule = schema["definitions"]["rule"]
    top = schema["properties"]
    page.section("SH", "KEYS")
    page.keys(schema)
    page.section("SS", "log")
    page.keys(top["log"])
    page.section("SS", "link")
    page.keys(top["link"])
    page.section("SH", "RULES")
    page.lines.append(TAIL_RULES.rstrip())
    page.keys(rule, lambda part: "x-action" not in part)
    page.section("SS", "Actions")
    page.keys(rule, lambda part: "x-action" in part)
    page.section("SS", "match")
    page.keys(rule["properties"]["match"])
    page.objects(rule["properties"]["match"])
    page.section("SH", "PROFILES")
    for path in sorted(profiles):
        text = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        page.lines += [".TP", f".B {roff(pathlib.Path(path).stem)}", roff(text["description"]) + "."]
    pathlib.Path(output).write_text(HEAD + "\n".join(page.lines) + "\n" + TAIL, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
