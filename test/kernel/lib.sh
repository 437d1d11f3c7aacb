# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# Sourced by the scripts of this folder, in the guest.
set -u
programs=$ADVERB_BUILD/test/kernel
built=$ADVERB_BUILD/kernel/$(uname -r)
broken_module=$built/adverb_broken.ko.test

# Whether this is the debug kernel (scripts/debug-kernel), which takes several times as long for everything.
debug_kernel() {
  [ -e /proc/lockdep_stats ] && [ -e /sys/kernel/debug/kmemleak ]
}
! debug_kernel || export ADVERB_SLOWNESS=8

# Ends the script as failed when a step that is no test of its own does not work.
need() {
  "$@" || {
    echo "not ok - $*: failed"
    exit 1
  }
}

# Keeps the kernel from moving pages on its own: what leaves is then what a test made leave.
quiet() {
  echo 0 > /proc/sys/kernel/numa_balancing
  echo 600000 > /sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs
}

# The guest's rxe0, of the rxe that is loaded.
make_rxe0() {
  need rdma link add rxe0 type rxe netdev eth0
  need chmod 0666 /dev/infiniband/uverbs*
}

# Loads the test driver $1. rdma_rxe is the soft RNIC of test/vm/rxe, in the place of the usual rxe.
load_driver() {
  if [ "$1" = rdma_rxe ]; then
    need rdma link delete rxe0
    need rmmod rdma_rxe
    need insmod "$built/adverb_rxe.ko.test"
    make_rxe0
  else
    need modprobe "$1"
  fi
}

# Unloads it again; false if something still holds it.
unload_driver() {
  [ "$1" != rdma_rxe ] || need rdma link delete rxe0
  rmmod "$1" || return 1
  [ "$1" = rdma_rxe ] || return 0
  need modprobe rdma_rxe
  make_rxe0
}

# Ends the script as skipped where kernel/build could not make the soft RNIC.
need_soft_rnic() {
  [ ! -e "$built/no_rxe" ] || {
    echo "ok - ${0##*/} # SKIP no soft RNIC: $(cat "$built/no_rxe")"
    exit 0
  }
}

# Loads adverb.ko and the test drivers $@.
load() {
  local driver
  quiet 2> /dev/null
  need modprobe adverb
  for driver in "$@"; do
    load_driver "$driver"
  done
}

# What the debug kernel has against us since it booted; it does not panic for all of that. Leaks are only
# those of our modules, which must still be loaded to be named.
complaints() {
  local until=$((SECONDS + 7))
  dmesg | grep -oE '(BUG|WARNING): .*|INFO: trying to register non-static key' | sed 's/ at .*//' | sort | uniq -c
  grep -q 'debug_locks: *1$' /proc/lockdep_stats || echo "lockdep has given up"
  # Nothing younger than five seconds is called a leak, nor what has changed since the scan before: which on a busy
  # host may have been the first one.
  while [ "$SECONDS" -lt "$until" ]; do
    echo scan > /sys/kernel/debug/kmemleak
  done
  echo scan > /sys/kernel/debug/kmemleak
  echo scan > /sys/kernel/debug/kmemleak
  grep -F '[adverb' /sys/kernel/debug/kmemleak | sed 's/^/leaked by /' | sort | uniq -c
}

# One line of TAP about it, on the debug kernel.
no_complaints() {
  local found
  debug_kernel || return 0
  found=$(complaints)
  if [ -z "$found" ]; then
    echo "ok - the debug kernel has no complaint"
  else
    dmesg | tail -n 150
    echo "not ok - the debug kernel has no complaint: ${found//$'\n'/; }"
  fi
}

# Unloads them again: what a test left behind would refuse it. $@: the drivers.
unload() {
  local driver
  no_complaints
  for driver in "$@" adverb; do
    if ! unload_driver "$driver"; then
      echo "not ok - $driver can be unloaded after the tests: something still holds it"
      return 1
    fi
  done
  echo "ok - the modules can be unloaded after the tests"
}

# With step $1 (a number of breakage.h) left out, the test of program $2 whose name contains $3 must
# fail; $4 says what the step is, the rest are drivers. $because: a pattern its reason must match. $before: words
# before the program.
must_notice() {
  local step=$1 program=$2 name=$3 what=$4 output
  shift 4
  need insmod "$broken_module" broken="$step"
  for driver in "$@"; do
    load_driver "$driver"
  done
  # shellcheck disable=SC2086 # they are words
  output=$(${before:-} "$programs/$program" "$name")
  # Not as TAP: the failure is what is wanted.
  echo "with step $step left out: ${output//$'\n'/; }"
  if grep -qE "^not ok - .*: .*(${because:-})" <<< "$output"; then
    echo "ok - without $what, \"$name\" fails"
  else
    echo "not ok - without $what, \"$name\" fails: it passed or did not run"
  fi
  for driver in "$@" adverb; do
    need unload_driver "$driver"
  done
}

# A file system of type $1 on the disk $2, at /run/np_$1; without its tools tests that want it skip.
file_system() {
  local type=$1 disk=$2 mount=/run/np_$1
  command -v "mkfs.$type" > /dev/null || return 0
  # Another script of this boot may have left one of its own there.
  need wipefs -qa "$disk"
  need "mkfs.$type" -q "$disk"
  need modprobe "$type"
  need mkdir -p "$mount"
  need mount -t "$type" "$disk" "$mount"
}
