# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# shellcheck disable=SC2154 # kernel, cache, apt_options and remove_at_exit come with kernel.sh and its caller
# Sourced after kernel.sh: what building a module for a cached kernel needs, kept beside it:
#   headers/usr/src/linux-headers-RELEASE   the directory to give to make -C
#   headers/usr/bin/sparse                  the static checker, where it could be had
# Nothing is installed on the host, and no root is needed.

# Debian's headers name their common half by absolute path; here it lies elsewhere.
relocate_headers() {
  local from=$1 to=$2
  grep -rlZ --include=Makefile --include=.kernelvariables -e '/usr/src/linux-' "$from"/usr/src/*/ |
    xargs -0 -r sed -i "s,\(^\|[ =]\)/usr/src/linux-,\1$to/usr/src/linux-,g"
}

# Downloads and unpacks the packages $2... below the directory $1.
unpack_packages() {
  local into=$1 deb
  shift
  mkdir -p "$into/deb"
  (cd "$into/deb" && apt-get -o APT::Sandbox::User=root "${apt_options[@]}" -qq download "$@" >&2) || return 1
  for deb in "$into"/deb/*.deb; do
    dpkg -x "$deb" "$into/headers" || return 1
  done
  rm -rf "$into/deb"
}

# Fetches the headers of release $1 for version $2; false, having said why, when they cannot be had.
fetch_headers() {
  local release=$1 version=$2 fresh packages
  packages=("linux-headers-$release" "linux-headers-${release%-amd64}-common" "linux-kbuild-${release%-amd64}")
  fresh=$(mktemp -d "$cache/kernels/fetch.XXXXXX")
  remove_at_exit+=("$fresh")
  apt_options=()
  if [ -z "$(apt-cache "${apt_options[@]}" pkgnames "linux-headers-$release")" ]; then
    say "headers of $release are not in this machine's package sources; asking the mirror's other suites"
    private_apt "$fresh/apt"
  fi
  say "fetching ${packages[*]}"
  if ! unpack_packages "$fresh" "${packages[@]}"; then
    say "no headers of $release to be had; a newer kernel may have replaced it (remove $cache/kernels/$version)"
    return 1
  fi
  unpack_packages "$fresh" sparse || say "no sparse to be had"
  # With it kbuild would want pahole, to describe types that nothing here asks for.
  rm -f "$fresh/headers/usr/src/linux-headers-$release/vmlinux"
  relocate_headers "$fresh/headers" "$cache/kernels/$version/headers"
  rm -rf "$cache/kernels/$version/headers"
  mv "$fresh/headers" "$cache/kernels/$version/headers"
}

# Sets $headers to the directory for make -C of the cached kernel $1, fetching it at the first use.
provide_headers() {
  local version=$1 release
  provide_kernel "$version"
  release=$(cat "$kernel/release")
  headers=$kernel/headers/usr/src/linux-headers-$release
  flock 9
  [ -d "$headers" ] || fetch_headers "$release" "$version" || headers=""
  flock -u 9
  [ -n "$headers" ]
}
