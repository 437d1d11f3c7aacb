#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Writes the schema, the default policy and the profiles as one C++ source.

usage: embed.py OUTPUT SCHEMA DEFAULT PROFILE...
"""

import json
import pathlib
import sys

# Compilers bound the length of one literal; neighbours are joined by the compiler.
PIECE = 8000


def literal(path):
    text = pathlib.Path(path).read_text(encoding="utf-8")
    json.loads(text)  # a broken file stops the build here, with its name in the trace
    pieces = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
    return "\n".join(f'R"embedded({piece})embedded"' for piece in pieces)


def main(output, schema, default, *profiles):
    named = sorted((pathlib.Path(p).stem, p) for p in (default, *profiles))
    lines = [
        "// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause",
        "// Made by embed.py from the files of policy/.",
        '#include "policy/embedded.h"',
        "namespace adverb::policy {",
        f"constexpr EmbeddedProfile profiles[] = {{",
        *(f'{{"{name}", {literal(path)}}},' for name, path in named),
        "};",
        f"const std::string_view embedded_schema = {literal(schema)};",
        f"const std::string_view embedded_default = {literal(default)};",
        "const std::span<const EmbeddedProfile> embedded_profiles = profiles;",
        "} // namespace adverb::policy",
    ]
    pathlib.Path(output).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
