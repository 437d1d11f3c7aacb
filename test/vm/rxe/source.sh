# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# shellcheck disable=SC2154 # kernel, cache, apt_options and remove_at_exit come with kernel.sh and its caller
# Sourced after kernel.sh by scripts/rxe: rxe's own source, of the very version of a cached kernel, kept beside it as
# rxe/, unchanged. Nothing is installed on the host, and no root is needed.

# The newest version of package $1 that is made from Linux $2, as far as apt knows.
source_version() {
  apt-cache "${apt_options[@]}" madison "$1" | awk -F' *[|] *' -v upstream="$2-" 'index($2, upstream) == 1 {print $2}' |
    sort -V | tail -n 1
}

# Fetches it for release $1 of version $2; false, having said why, when it cannot be had.
fetch_rxe() {
  local release=$1 version=$2 fresh upstream package wanted
  upstream=${release%%[+-]*}
  package=linux-source-${upstream%.*}
  fresh=$(mktemp -d "$cache/kernels/fetch.XXXXXX")
  remove_at_exit+=("$fresh")
  apt_options=()
  wanted=$(source_version "$package" "$upstream")
  if [ -z "$wanted" ]; then
    say "$package of $upstream is not in this machine's package sources; asking the mirror's other suites"
    private_apt "$fresh/apt"
    wanted=$(source_version "$package" "$upstream")
  fi
  if [ -z "$wanted" ]; then
    say "no $package of $upstream to be had; a newer kernel may have replaced it (remove $cache/kernels/$version)"
    return 1
  fi
  say "fetching $package $wanted, of which rxe stays"
  mkdir "$fresh/deb"
  (cd "$fresh/deb" && apt-get -o APT::Sandbox::User=root "${apt_options[@]}" -qq download "$package=$wanted" >&2) || return 1
  dpkg --fsys-tarfile "$fresh"/deb/*.deb | tar -xO "./usr/src/$package.tar.xz" |
    tar -xJ -C "$fresh" "$package/drivers/infiniband/sw/rxe" || return 1
  mv "$fresh/$package/drivers/infiniband/sw/rxe" "$cache/kernels/$version/rxe"
}

# Sets $rxe to where the source for the cached kernel $1 is, fetching it at the first use.
provide_rxe() {
  local version=$1
  provide_kernel "$version"
  rxe=$kernel/rxe
  flock 9
  [ -d "$rxe" ] || fetch_rxe "$(cat "$kernel/release")" "$version" || rxe=""
  flock -u 9
  [ -n "$rxe" ]
}
