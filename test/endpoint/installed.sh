#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# installed.sh DIRECTORY-OF-LOOPBACK LIBADVERB REPOSITORY: the header and adverb.pc as they are installed, in a program
# of C and in one of C++, with the library preloaded and found.
set -u
loopback=$1 adverb=$2 repo=$3
build=$(dirname "$(dirname "$adverb")")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch" /dev/shm/adverb-installed.$$' EXIT
unset LD_PRELOAD ADVERB_POLICY ADVERB_LOG ADVERB_LOOPBACK_LINK
export ASAN_OPTIONS=detect_leaks=0 # these programs give nothing back at their end
export ADVERB_LOOPBACK_FABRIC=adverb-installed.$$
# The programs are compiled without a sanitizer, and its runtime comes first.
runtime=$(ldd "$adverb" | awk '$1 ~ /^lib(asan|tsan)\.so/ { print $3; exit }')
if ! DESTDIR=$scratch/root meson install -C "$build" --no-rebuild --tags devel > "$scratch/out" 2>&1; then
  tail -n 5 "$scratch/out" | sed 's/^/# /'
  echo "not ok - the header is installed"
  echo "1..1"
  exit
fi
PKG_CONFIG_PATH=$(dirname "$(find "$scratch/root" -name adverb.pc)")
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR=$scratch/root
read -ra flags <<< "$(pkg-config --cflags --libs adverb)"

# try NAME COMPILER...
try() {
  local name=$1
  shift
  if ! "$@" -Wall -Wextra -Wpedantic -Werror -o "$scratch/program" "$repo/test/endpoint/installed.c" -x none \
    "${flags[@]}" -libverbs > "$scratch/out" 2>&1; then
    head -n 8 "$scratch/out" | sed 's/^/# /'
    echo "not ok - $name, compiled"
    return
  fi
  if LD_LIBRARY_PATH=$loopback LD_PRELOAD=${runtime:+$runtime:}$adverb timeout 60 "$scratch/program" > "$scratch/out" 2>&1; then
    echo "ok - $name, library preloaded"
  else
    sed 's/^/# /' "$scratch/out"
    echo "not ok - $name, library preloaded"
  fi
  if LD_PRELOAD=$runtime LD_LIBRARY_PATH=$loopback:$(dirname "$adverb") timeout 60 "$scratch/program" > "$scratch/out" 2>&1; then
    echo "ok - $name, library found"
  else
    sed 's/^/# /' "$scratch/out"
    echo "not ok - $name, library found"
  fi
}

try "a program of C99" cc -std=c99 -D_DEFAULT_SOURCE -x c
try "a program of C++17" c++ -std=c++17 -x c++
echo "1..4"
