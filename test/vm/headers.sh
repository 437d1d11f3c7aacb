# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# shellcheck disable=SC2154 # kernel, cache, apt_options and remove_at_exit come with kernel.sh and its caller
# Sourced after kernel.sh: what building a module for a cached kernel needs, kept beside it:
#   headers/usr/src/linux-headers-RELEASE   the directory to give to make -C
#   headers/usr/bin/sparse                  the static checker, where it could be had
# or, for a kernel that no release's compiler and C library can build modules for,
#   root/                                   a system of its suite to build in: headers, gcc, make, sparse
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

# The suite whose compiler and C library the headers of version $1 want; nothing: those of this machine will do.
suite_of_headers() {
  case "$1" in
    7.2) echo sid ;;
  esac
}

# Unpacks a system with the headers of release $1 and what builds with them, of suite $3, to $2/root.
unpack_root() {
  local release=$1 into=$2 suite=$3 deb
  private_apt "$into/apt" forky "$suite"
  # To an empty machine everything is missing, so everything comes.
  : > "$into/apt/status"
  apt_options+=(-o "Dir::State=$into/apt" -o "Dir::State::status=$into/apt/status" -o Debug::NoLocking=1)
  apt-get "${apt_options[@]}" -qq -y -d --no-install-recommends install "linux-headers-$release" make sparse \
    base-files coreutils dash findutils grep mawk sed >&2 || return 1
  # The links /bin and /lib come first, or what is unpacked through them would be directories.
  for deb in "$into"/apt/cache/archives/{base-files_,}*.deb; do
    dpkg -x "$deb" "$into/root" || return 1
  done
  ln -sf mawk "$into/root/usr/bin/awk"
  # With it kbuild would want pahole, to describe types that nothing here asks for.
  rm -rf "$into/root/usr/src/linux-headers-$release/vmlinux" "$into/root/usr/share"/{doc,man,locale,info}
}

# Fetches release $1 of version $2 with a system to build in; false, having said why, when it cannot be had.
fetch_root() {
  local release=$1 version=$2 fresh
  fresh=$(mktemp -d "$cache/kernels/fetch.XXXXXX")
  remove_at_exit+=("$fresh")
  say "fetching the headers of $release, and a system of Debian $(suite_of_headers "$version") to build in"
  if ! unpack_root "$release" "$fresh" "$(suite_of_headers "$version")"; then
    say "no headers of $release to be had; a newer kernel may have replaced it (remove $cache/kernels/$version)"
    return 1
  fi
  mv "$fresh/root" "$cache/kernels/$version/root"
}

# Sets $headers to where the headers of the cached kernel $1 are, fetching them at the first use.
provide_headers() {
  local version=$1 release fetch=fetch_headers base
  provide_kernel "$version"
  release=$(cat "$kernel/release")
  base=$kernel/headers
  if [ -n "$(suite_of_headers "$version")" ]; then
    fetch=fetch_root base=$kernel/root
  fi
  headers=$base/usr/src/linux-headers-$release
  flock 9
  [ -d "$headers" ] || "$fetch" "$release" "$version" || headers=""
  flock -u 9
  [ -n "$headers" ]
}
