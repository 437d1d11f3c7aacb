#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# The files of kernel/install do what kernel/install/README.md says, with the host's own systemd.
# vm: device=edu
# timeout: 120
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
install=kernel/install
systemd=/lib/systemd
status=0

skip_all() {
  echo "ok - the module's files work where they are installed # SKIP $1"
  exit 0
}
command -v systemd-sysusers > /dev/null || skip_all "systemd-sysusers is not installed"
[ -x $systemd/systemd-udevd ] || skip_all "udev is not installed"
[ -x $systemd/systemd-modules-load ] || skip_all "systemd-modules-load is not installed"

# is NAME WANTED COMMAND...: what the command prints.
is() {
  local name=$1 wanted=$2 said
  shift 2
  said=$("$@" 2>&1)
  if [ "$said" = "$wanted" ]; then
    echo "ok - $name"
  else
    echo "not ok - $name: \"$said\" instead of \"$wanted\""
    status=1
  fi
}

# The level of doctor's line on /dev/adverb for a user of no group but $@.
node_for() {
  setpriv --reuid=65534 --regid=65534 "$@" -- adverb doctor --json |
    jq -r '.[] | select(.what == "/dev/adverb") | .status + ", " + .finding'
}

mkdir -p /lib/udev/rules.d /lib/sysusers.d /lib/modules-load.d
need cp $install/60-adverb.rules /lib/udev/rules.d/
need cp $install/adverb.sysusers /lib/sysusers.d/adverb.conf
need cp $install/adverb.modules-load /lib/modules-load.d/adverb.conf

# rdma-core's package may have made it here.
sed -i '/^rdma:/d' /etc/group /etc/gshadow
need systemd-sysusers adverb.conf
is "systemd-sysusers makes the group" rdma bash -c 'getent group rdma | cut -d: -f1'
need $systemd/systemd-udevd --daemon
need $systemd/systemd-modules-load /lib/modules-load.d/adverb.conf
is "systemd-modules-load loads the module" live cat /sys/module/adverb/initstate
need udevadm settle --timeout=30
is "udev gives the device to group rdma, mode 0660" "rdma 660" stat -c '%G %a' /dev/adverb
is "a member of group rdma may use it" "ok, group rdma, mode 0660; this user can open it" node_for --groups=rdma
is "others may not" "warn, group rdma, mode 0660; not for this user" node_for --clear-groups
udevadm control --exit
# shellcheck disable=SC2119 # no drivers
unload && exit "$status"
