# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # cache and remove_at_exit are the caller's, which uses qemu; apt_options is kernel.sh's
# Sourced after kernel.sh: a QEMU of another version than this machine's, kept under $cache/qemu/VERSION:
#   root/   Debian's packages, unpacked: QEMU, its firmware, and every library it needs down to the C library
# It is run by its own loader, so that neither the machine's release nor what is installed matters.
# Nothing is installed on the host, and no root is needed.

# Where QEMU $1 is: a line for each try, the suite to take it from and those that complete that one. Debian
# 12's backports stayed at 10.0.2, so they come last.
qemu_suites() {
  case "$1" in
    7.2) echo bookworm ;;
    10) printf '%s\n' trixie "bookworm-backports bookworm" ;;
  esac
}

# The version number of the QEMU that the words $@ start.
qemu_version() {
  "$@" --version 2> /dev/null | sed -n 's/^QEMU emulator version \([0-9.]*\).*/\1/p'
}

# Unpacks QEMU $1 from the suites $3... into $2/root; false when they do not have it.
fetch_qemu_from() {
  local version=$1 into=$2 suite=$3 deb
  shift 2
  rm -rf "$into"
  private_apt "$into/apt" "$@"
  # To an empty machine everything is missing, so everything comes.
  : > "$into/apt/status"
  apt_options+=(-o "Dir::State=$into/apt" -o "Dir::State::status=$into/apt/status" -o Debug::NoLocking=1)
  apt-cache "${apt_options[@]}" -t "$suite" policy qemu-system-x86 2> /dev/null |
    grep -qE "Candidate: ([0-9]+:)?${version//./\\.}[.+]" || return 1
  say "fetching QEMU $version of $suite"
  apt-get "${apt_options[@]}" -qq -y -d --no-install-recommends -t "$suite" install qemu-system-x86 >&2 || return 1
  for deb in "$into"/apt/cache/archives/*.deb; do
    dpkg -x "$deb" "$into/root" || return 1
  done
  rm -rf "$into/apt" "$into/root/usr/share"/{doc,man,locale,icons}
}

# Sets $qemu to the words that start the unpacked QEMU below $1.
unpacked_qemu() {
  local root=$1/root libraries loader
  libraries=$root/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu
  loader=$(find "$root/lib" "$root/usr/lib" -name ld-linux-x86-64.so.2 -type f 2> /dev/null | head -n 1)
  qemu=(env "QEMU_MODULE_DIR=$root/usr/lib/x86_64-linux-gnu/qemu" "$loader" --library-path "$libraries"
    "$root/usr/bin/qemu-system-x86_64"
    -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" -L "$root/usr/lib/ipxe/qemu")
}

# Fetches QEMU $1 into the cache; false, having said why, when it cannot be had.
fetch_qemu() {
  local version=$1 fresh suites
  fresh=$(mktemp -d "$cache/qemu/fetch.XXXXXX")
  remove_at_exit+=("$fresh")
  while read -r -a suites; do
    fetch_qemu_from "$version" "$fresh/try" "${suites[@]}" || continue
    unpacked_qemu "$fresh/try"
    if [[ "$(qemu_version "${qemu[@]}")." != "$version".* ]]; then
      say "QEMU $version of ${suites[0]} does not start on this machine: $("${qemu[@]}" --version 2>&1 | head -n 1)"
      continue
    fi
    mv "$fresh/try" "$cache/qemu/$version"
    return 0
  done < <(qemu_suites "$version")
  say "no QEMU $version to be had from $(qemu_suites "$version" | cut -d ' ' -f 1 | paste -sd ' ') of this machine's mirrors"
  return 1
}

# Sets $qemu to the words that start QEMU $1 (empty: the machine's own); false when it is not there.
find_qemu() {
  local version=$1
  qemu=(qemu-system-x86_64)
  [ -n "$version" ] && [[ "$(qemu_version "${qemu[@]}")." != "$version".* ]] || return 0
  [ -d "$cache/qemu/$version" ] || return 1
  unpacked_qemu "$cache/qemu/$version"
}

# The same, fetching it at the first use; false, having said why, when it cannot be had.
provide_qemu() {
  local version=$1 got=0
  mkdir -p "$cache/qemu"
  exec 8> "$cache/qemu/$version.lock"
  flock 8
  find_qemu "$version" || { fetch_qemu "$version" && find_qemu "$version"; } || got=1
  exec 8>&-
  return "$got"
}
