# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""preload/provider/verbs.def, tables of preload/interpose, dynamic symbols, and what must hold
between them."""

import re
import subprocess


def rows(text):
    """{macro: [arguments up to the first free text]} of every line of the table."""
    text = re.sub(r"//[^\n]*|^#[^\n]*", "", text, flags=re.M)
    word = r"\s*([\w.* ]+?)\s*"
    return {
        "HOOK": [(name, node, need) for name, node, need in
                 re.findall(rf"HOOK\([^,]+,{word},{word},{word},", text)],
        "PASS": re.findall(rf"PASS\({word},{word},{word},", text),
        "CALL": re.findall(rf"CALL\({word},{word}\)", text),
        "OTHER": re.findall(rf"OTHER\({word},{word},{word},", text),
        "NODES": re.findall(rf"NODES\({word},", text),
        "INLINE": re.findall(rf"INLINE\({word},{word},", text),
        "SIGNALS": re.findall(rf"(?:SIGNALS|MAPPINGS|DESCRIPTORS)\([^,]+,{word},{word},", text) +
                   re.findall(rf"SIGNALS_ALIAS\({word},{word}\)", text),
    }


OWN = {("adverb_api", "ADVERB_1")}  # adverb.h looks it up


def hooks(table):
    """The (symbol, node) pairs libadverb.so has to export."""
    return {("ibv_" + name, node) for name, node, _ in table["HOOK"]} | set(table["SIGNALS"])


def missing_in_c_library(table, exported):
    """Hooks of functions the installed C library lacks, or has at another node."""
    absent = set(table["SIGNALS"]) - exported
    return f"not in the installed C library: {say(absent)}" if absent else None


def needed_by_table(table):
    """The pairs any installed libibverbs has to export."""
    wanted = {("ibv_" + name, node) for name, node, need in table["HOOK"] + table["PASS"]
              if need == "required"}
    wanted |= {("ibv_" + name, node) for name, node in table["CALL"]}
    return wanted | {(name, node) for name, node, need in table["OTHER"] if need == "required"}


def known_to_table(table):
    known = {("ibv_" + row[0], row[1]) for row in table["HOOK"] + table["PASS"] + table["CALL"]}
    return known | {(name, node) for name, node, _ in table["OTHER"]}


def exports(library):
    """(symbol, node) pairs a library exports; the nodes' own symbols left out."""
    out = subprocess.run(["readelf", "--dyn-syms", "--wide", library], check=True,
                         capture_output=True, text=True).stdout
    found = set()
    for line in out.splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].endswith(":") or fields[6] in ("UND", "Ndx"):
            continue
        if fields[6] == "ABS" and fields[3] == "OBJECT":
            continue
        name, _, node = fields[7].partition("@")
        found.add((name, node.lstrip("@")))
    return found


def needed(library):
    out = subprocess.run(["readelf", "--dynamic", "--wide", library], check=True,
                         capture_output=True, text=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", out))


def installed(soname):
    """Path of a library as the loader finds it, without this process's environment."""
    out = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    found = re.search(rf"^\s*{re.escape(soname)} \(libc6,x86-64[^)]*\) => (\S+)$", out, re.M)
    return found.group(1) if found else None


def say(pairs):
    return ", ".join(sorted(f"{name}@{node}" for name, node in pairs))


def wrong_exports(table, exported):
    """What is wrong with the exports of libadverb.so; None if nothing."""
    wanted = hooks(table) | OWN
    if wanted == exported:
        return None
    return f"missing: {say(wanted - exported) or 'none'}; too many: {say(exported - wanted) or 'none'}"


def missing_installed(table, exported):
    absent = needed_by_table(table) - exported
    return f"required, but not in the installed library: {say(absent)}" if absent else None


def unlisted(table, exported):
    """Symbols of the installed library nobody decided on."""
    rest = {(name, node) for name, node in exported - known_to_table(table)
            if not any(node.startswith(prefix) for prefix in table["NODES"])}
    return f"not in the table: {say(rest)}" if rest else None
