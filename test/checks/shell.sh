#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# No shell script gives shellcheck cause for complaint.
# gate: yes
# shellcheck source=test/checks/lib.sh
. "$(dirname "$0")/lib.sh"

is_shell() { head -n 1 "$1" | grep -qE '^#!.*\b(sh|bash)\b' || head -n 3 "$1" | grep -q '^# shellcheck shell='; }

mapfile -t files < <(tracked "*" | while read -r file; do is_shell "$file" && echo "$file"; done)
check "shellcheck finds nothing in ${#files[@]} scripts" shellcheck -x "${files[@]}"
finish
