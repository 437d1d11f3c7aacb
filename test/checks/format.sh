#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Every C and C++ file is as .clang-format has it (kernel modules are in the kernel's own style).
# The version is fixed, to the one Debian 12 and 13 both have: each formats a little differently.
# gate: yes
# shellcheck source=test/checks/lib.sh
. "$(dirname "$0")/lib.sh"

mapfile -t sources < <(tracked '*.cpp' '*.h' '*.c' ':!kernel/' ':!test/kernel/modules/' ':!test/kernel/broken/' ':!test/vm/rxe/')
[ ${#sources[@]} -gt 0 ] || { not_ok "there are sources to check" "git ls-files lists none"; exit 1; }
check "sources are formatted as .clang-format says" clang-format-19 --dry-run -Werror "${sources[@]}"
finish
