# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# shellcheck disable=SC2154 # repo, build and cache are scripts/vm's
# Sourced by scripts/vm: Debian kernels as guests want them, kept under $cache/kernels/VERSION:
#   vmlinuz      the image
#   modules/     what goes to /lib/modules: RELEASE/ with the decompressed modules guests may need
#   release      the kernel release, as uname -r prints it
#   initramfs    busybox, the modules a root over 9p needs, test/vm/init
# Nothing is installed on the host, and no root is needed. VERSION is "debug" for what scripts/debug-kernel
# builds.

# Suites asked when the host's own sources do not carry a version, newest kernels last.
other_suites() {
  echo "bookworm-security bookworm bookworm-backports trixie-security trixie trixie-backports forky sid"
}

# apt options for a private state below $1, with the Debian suites $2... (all that may have a kernel) as
# far as the configured mirrors have them. The host's own lists and sources stay as they are.
private_apt() {
  local state=$1 uri suite uris suites
  shift
  suites=${*:-$(other_suites)}
  mkdir -p "$state"/{lists/partial,cache/archives/partial,etc/apt.conf.d}
  : > "$state/sources.list"
  # shellcheck disable=SC2016 # a placeholder of apt's
  uris=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | sort -u | grep -E '/debian/?$')
  # A minimal installation names the archive only; the security archive lies beside it.
  uris+=" "$(for uri in $uris; do echo "${uri%/}-security/"; done)
  for suite in $suites; do
    for uri in $uris; do
      case "$suite:$uri" in
        *-security:*-security*) ;;
        *:*-security* | *-security:*) continue ;;
      esac
      echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main" >> "$state/sources.list"
    done
  done
  apt_options=(-o "Dir::Etc::sourcelist=$state/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$state/lists" -o "Dir::Cache=$state/cache" -o APT::Sandbox::User=root
    -o Acquire::Languages=none)
  # A suite the mirror lacks is no reason to go without the others.
  apt-get "${apt_options[@]}" -qq update > "$state/update.log" 2>&1 || true
}

# The newest signed amd64 image package of version $1 that apt can see.
image_package() {
  apt-cache "${apt_options[@]}" pkgnames "linux-image-$1" |
    grep -E "^linux-image-${1//./\\.}(\.[0-9]+)*([-+~][a-z0-9.]+)*-amd64$" |
    grep -vE -- '-(cloud|rt)-amd64$' | sort -V | tail -n 1
}

# The packages that hold the image and modules of release $1: one up to 6.x, several from 7.x on.
kernel_packages() {
  echo "linux-image-$1"
  apt-cache "${apt_options[@]}" depends --no-recommends --no-suggests "linux-image-$1" |
    awk -v release="$1" '$1 == "Depends:" && ($2 == "linux-modules-" release || $2 == "linux-binary-" release || $2 == "linux-base-" release) {print $2}'
}

# Keeps what a guest of this project can meet; gpu, sound, wireless and media are most of the bulk.
keep_modules() {
  local from=$1 to=$2 dir
  mkdir -p "$to/kernel/drivers"
  for dir in arch block crypto fs lib mm net virt security; do
    [ ! -d "$from/kernel/$dir" ] || cp -r "$from/kernel/$dir" "$to/kernel/"
  done
  for dir in infiniband iommu virtio block char dma dma-buf crypto md misc ptp pci vfio vhost; do
    [ ! -d "$from/kernel/drivers/$dir" ] || cp -r "$from/kernel/drivers/$dir" "$to/kernel/drivers/"
  done
  mkdir -p "$to/kernel/drivers/net/ethernet"
  find "$from/kernel/drivers/net" -maxdepth 1 -name '*.ko*' -exec cp {} "$to/kernel/drivers/net/" \;
  for dir in intel mellanox broadcom; do
    cp -r "$from/kernel/drivers/net/ethernet/$dir" "$to/kernel/drivers/net/ethernet/" 2> /dev/null || true
  done
  cp "$from"/modules.* "$to/"
  find "$to" -name '*.ko.xz' -print0 | xargs -0 -r -P 2 -n 32 xz -d
  find "$to" -name '*.ko.zst' -print0 | xargs -0 -r -n 32 zstd -q -d --rm
}

# Fetches version $1 into the directory $2.
fetch_kernel() {
  local version=$1 into=$2 package packages release
  apt_options=()
  package=$(image_package "$version")
  if [ -z "$package" ]; then
    say "kernel $version is not in this machine's package sources; asking the mirror's other suites"
    private_apt "$into/apt"
    package=$(image_package "$version")
  fi
  if [ -z "$package" ]; then
    grep -E '^[EW]:' "$into/apt/update.log" | head -n 4 >&2
    die "no kernel $version to be had: no linux-image-$version*-amd64 in the configured sources, nor in $(other_suites | tr ' ' ',') of their mirror. Debian 12 carries 6.1 in bookworm and 6.12 in bookworm-security; 7.2 needs a mirror with a newer suite."
  fi
  release=${package#linux-image-}
  mapfile -t packages < <(kernel_packages "$release")
  say "fetching ${packages[*]}"
  mkdir "$into/deb"
  (cd "$into/deb" && apt-get -o APT::Sandbox::User=root "${apt_options[@]}" -qq download "${packages[@]}" >&2) ||
    die "apt-get could not download ${packages[*]}"
  local deb
  for deb in "$into"/deb/*.deb; do
    dpkg -x "$deb" "$into/image"
  done
  say "unpacking $release"
  local modules=$into/image/lib/modules
  [ -d "$modules" ] || modules=$into/image/usr/lib/modules
  [ -d "$modules/$release/kernel" ] || die "the packages ${packages[*]} hold no modules where they are expected"
  mkdir -p "$into/modules"
  keep_modules "$modules/$release" "$into/modules/$release"
  mkdir -p "$into/base/lib"
  ln -s ../../modules "$into/base/lib/modules"
  depmod -b "$into/base" "$release"
  cp "$(find "$into/image" -name "vmlinuz*" -type f | head -n 1)" "$into/vmlinuz" ||
    die "the packages ${packages[*]} hold no kernel image"
  echo "$release" > "$into/release"
  rm -rf "$into/image" "$into/deb" "$into/apt"
}

# The archive a guest boots from; rebuilt when test/vm/init changed.
build_initramfs() {
  local kernel=$1 tree module count=0
  tree=$(mktemp -d "$kernel/tree.XXXXXX")
  mkdir -p "$tree"/{bin,modules,job}
  cp "$(command -v busybox)" "$tree/bin/busybox"
  cp "$repo/test/vm/init" "$tree/init"
  chmod +x "$tree/init"
  for module in virtio_pci virtio_console 9pnet_virtio 9p overlay; do
    modprobe -S "$(cat "$kernel/release")" -d "$kernel/base" --show-depends "$module" | awk '$1 == "insmod" {print $2}'
  done | awk '!seen[$0]++' > "$tree/modules.list"
  while read -r module; do
    count=$((count + 1))
    cp "$module" "$tree/modules/$(printf %02d "$count")-$(basename "$module")"
  done < "$tree/modules.list"
  rm "$tree/modules.list"
  (cd "$tree" && find . | cpio -o -H newc --quiet | gzip -1) > "$kernel/initramfs.new"
  mv "$kernel/initramfs.new" "$kernel/initramfs"
  rm -rf "$tree"
}

# Sets $kernel to the directory of version $1, fetching it at the first use.
provide_kernel() {
  local version=$1
  mkdir -p "$cache/kernels"
  kernel=$cache/kernels/$version
  exec 9> "$cache/kernels/$version.lock"
  flock 9
  if [ ! -e "$kernel/release" ]; then
    [ "$version" != debug ] || die "no debug kernel in the cache; scripts/debug-kernel builds it"
    local fresh
    fresh=$(mktemp -d "$cache/kernels/fetch.XXXXXX")
    remove_at_exit+=("$fresh")
    fetch_kernel "$version" "$fresh"
    rm -rf "$kernel"
    mv "$fresh" "$kernel"
  fi
  if [ ! -e "$kernel/initramfs" ] || [ "$repo/test/vm/init" -nt "$kernel/initramfs" ]; then
    build_initramfs "$kernel"
  fi
  flock -u 9
}

# Sets $modules_dir to what goes to the guest's /lib/modules: the kernel's own, and with them what
# `kernel/` built for this release.
provide_modules() {
  local kernel=$1 work=$2 release
  release=$(cat "$kernel/release")
  modules_dir=$kernel/modules
  compgen -G "$build/kernel/$release/*.ko" > /dev/null || return 0
  modules_dir=$work/modules
  mkdir -p "$modules_dir" "$work/base/lib"
  cp -a "$kernel/modules/$release" "$modules_dir/"
  mkdir "$modules_dir/$release/extra"
  cp "$build/kernel/$release"/*.ko "$modules_dir/$release/extra/"
  ln -s ../../modules "$work/base/lib/modules"
  depmod -b "$work/base" "$release"
}
