#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# The units of the broker are what systemd takes them for, and give it nothing that it does not need.
# gate: yes
set -u
if ! command -v systemd-analyze > /dev/null; then
  echo "ok - units # SKIP systemd-analyze is not here"
  exit 0
fi
units=$(mktemp -d)
trap 'rm -rf "$units"' EXIT
cp "$ADVERB_REPO/preload/tools/adverb-broker.socket" "$units"
# The command where it has been built, as nothing is installed.
sed "s|^ExecStart=[^ ]*|ExecStart=$ADVERB_BUILD/preload/tools/adverb|" \
  "$ADVERB_BUILD/preload/tools/adverb-broker.service" > "$units/adverb-broker.service"

if said=$(systemd-analyze --man=no verify "$units"/adverb-broker.{socket,service} 2>&1) &&
  ! grep adverb-broker <<< "$said"; then
  echo "ok - systemd takes the broker's units"
else
  echo "$said"
  echo "not ok - systemd takes the broker's units"
fi
# From 0, nothing exposed, to 100; 20 is what systemd calls OK, and an ordinary service has 96.
if said=$(systemd-analyze security --offline=true --threshold=15 "$units/adverb-broker.service" 2>&1); then
  echo "ok - the broker's service has no rights but to its sockets"
else
  echo "$said"
  echo "not ok - the broker's service has no rights but to its sockets"
fi
