#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# gate: yes
# adverb run refuses, with a reason and before anything starts, what a preload cannot reach.
# shellcheck source=test/preload/lib.sh
. "$(dirname "$0")/lib.sh"

true=$(type -P true) # the file, not the shell's own

# patched FROM TO FILE: a copy of true(1) with one byte string replaced by another of its length.
patched() {
  sed "s#$1#$2#" "$true" >"$scratch/$3" && chmod 755 "$scratch/$3"
}
# byte OFFSET VALUE FILE: a copy of true(1) with one byte changed.
byte() {
  cp "$true" "$scratch/$3"
  printf "%b" "\\x$2" | dd of="$scratch/$3" bs=1 seek="$1" conv=notrunc status=none
}
script() { printf '%s\n' "$2" >"$scratch/$1" && chmod 755 "$scratch/$1"; }

run "$adverb" run no-such-program-anywhere
expect "a missing program: 127" 127 "no-such-program-anywhere: no such program"
run "$adverb" run /no/such/program
expect "a missing path: 127" 127 "no such program"
run "$adverb" run ""
expect "an empty name: 127" 127 "no such program"
run "$adverb" run "$scratch"
expect "a directory: 126" 126 "Is a directory"
script plain 'exit 0' && chmod 644 "$scratch/plain"
run "$adverb" run "$scratch/plain"
expect "a file that is not executable: 126" 126 "Permission denied"
PATH=$scratch:$PATH run "$adverb" run plain
expect "a file in PATH that is not executable: 126" 126 "Permission denied"

run "$adverb" run /sbin/ldconfig --version
expect "a static program: 126" 126 "statically linked"
byte 4 01 narrow
run "$adverb" run "$scratch/narrow"
expect "a 32-bit program: 126" 126 "32-bit"
byte 18 b7 foreign
run "$adverb" run "$scratch/foreign"
expect "a program for another machine: 126" 126 "another machine"
patched /lib64/ld-linux-x86-64.so.2 /lib64/ld-musl--x86-64.so.2 musl
run "$adverb" run "$scratch/musl"
expect "a program of another C library: 126" 126 "its loader is /lib64/ld-musl"
head -c 40 "$true" >"$scratch/cut" && chmod 755 "$scratch/cut"
run "$adverb" run "$scratch/cut"
expect "a program cut short: 126" 126 "cut short"
byte 54 ff headers
run "$adverb" run "$scratch/headers"
expect "a program with malformed headers: 126" 126 "malformed"
byte 16 01 object
run "$adverb" run "$scratch/object"
expect "an object file: 126" 126 "not an executable ELF file"

script orphan '#!/no/such/interpreter'
run "$adverb" run "$scratch/orphan"
expect "a script without its interpreter: 126" 126 "its interpreter /no/such/interpreter cannot be run"
script static '#!/sbin/ldconfig'
run "$adverb" run "$scratch/static"
expect "a script with a static interpreter: 126" 126 "statically linked"

if can_be_nobody; then
  cp "$true" "$scratch/setuid" && chmod 4755 "$scratch/setuid"
  run as_nobody "$adverb" run "$scratch/setuid"
  if findmnt -nT "$scratch" -o OPTIONS | grep -q nosuid; then
    expect "a setuid program where setuid is off: runs" 0 ""
  else
    expect "a setuid program: 126" 126 "it is setuid (to user 0), so the loader ignores LD_PRELOAD"
    cp "$true" "$scratch/setgid" && chmod 2755 "$scratch/setgid"
    run as_nobody "$adverb" run "$scratch/setgid"
    expect "a setgid program: 126" 126 "it is setgid (to group 0)"
    script wrapped "#!$scratch/setuid"
    run as_nobody "$adverb" run "$scratch/wrapped"
    expect "a script with a setuid interpreter: 126" 126 "it is setuid"
    run as_nobody setpriv --no-new-privs "$adverb" run "$scratch/setuid"
    expect "a setuid program that cannot gain anything: runs" 0 ""
  fi
  run "$adverb" run "$scratch/setuid"
  expect "a setuid program of the user itself: runs" 0 ""
  cp "$true" "$scratch/capable"
  if command -v setcap >/dev/null && setcap cap_net_raw+ep "$scratch/capable" 2>/dev/null; then
    run as_nobody "$adverb" run "$scratch/capable"
    expect "a program with file capabilities: 126" 126 "file capabilities"
  else
    skip "a program with file capabilities: 126" "no setcap here"
  fi
  cp "$true" "$scratch/secret" && chmod 711 "$scratch/secret"
  run as_nobody "$adverb" run --dry-run "$scratch/secret"
  expect_output "a program that cannot be read: runs, and says it was not checked" 0 "was not checked"
else
  skip "setuid, setgid and capable programs: 126" "needs root, and a build that ordinary users can reach"
fi
