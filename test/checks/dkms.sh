#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# dkms builds adverb.ko from kernel/ alone, and its version is the project's.
# timeout: 600
# shellcheck source=test/checks/lib.sh
. "$(dirname "$0")/lib.sh"

name="dkms builds the module from kernel/ alone"
version=$(sed -n "s/^  version: '\(.*\)',$/\1/p" meson.build)
said=$(sed -n 's/^PACKAGE_VERSION="\(.*\)"$/\1/p' kernel/dkms.conf)
if [ -n "$version" ] && [ "$said" = "$version" ]; then
  ok "dkms.conf has the project's version"
else
  not_ok "dkms.conf has the project's version" "it says $said, meson.build $version"
fi

skip() {
  echo "ok - $name # SKIP $1"
  finish
  exit
}
PATH=$PATH:/usr/sbin
command -v dkms > /dev/null || skip "dkms is not installed"
cache=${ADVERB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/adverb}
headers=$(compgen -G "$cache/kernels/6.12/headers/usr/src/linux-headers-*-amd64") || skip "no kernel headers in $cache"
release=${headers##*/linux-headers-}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/src/adverb-$version" "$scratch/tree" "$scratch/modules"
# What a package puts into /usr/src: what git knows of the folder, and nothing a build left there.
tracked 'kernel/*' | grep -v '^kernel/install/' | xargs cp -t "$scratch/src/adverb-$version"
check "$name" dkms build "adverb/$version" -k "$release" -a x86_64 --kernelsourcedir "$headers" --no-depmod \
  --sourcetree "$scratch/src" --dkmstree "$scratch/tree" --installtree "$scratch/modules"
built=$scratch/tree/adverb/$version/$release/x86_64/module/adverb.ko
if [ "$(modinfo -F vermagic "$built" 2> /dev/null | cut -d' ' -f1)" = "$release" ]; then
  ok "what dkms built is a module for that kernel"
else
  not_ok "what dkms built is a module for that kernel" "$(modinfo "$built" 2>&1 | head -n 3)"
  cat "$scratch/tree/adverb/$version/build/make.log" 2> /dev/null
fi
if dkms build "adverb/$version" -k 6.1.0-amd64 -a x86_64 --kernelsourcedir "$headers" --no-depmod \
  --sourcetree "$scratch/src" --dkmstree "$scratch/tree" --installtree "$scratch/modules" > "$scratch/log" 2>&1; then
  not_ok "dkms leaves older kernels alone" "it built for 6.1"
elif grep -q BUILD_EXCLUSIVE "$scratch/log"; then
  ok "dkms leaves older kernels alone"
else
  not_ok "dkms leaves older kernels alone" "$(cat "$scratch/log")"
fi
finish
