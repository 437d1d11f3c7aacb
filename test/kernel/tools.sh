#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# What `adverb stat` and `adverb doctor` say of the module: not loaded, loaded, in use, refusing, refused.
# Ends with the kernel locked down, so no script that loads anything may follow in this boot.
# vm: device=edu
# timeout: 480
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
status=0

# shows NAME FILTER COMMAND...: jq's FILTER holds for what the command prints.
shows() {
  local name=$1 filter=$2 output
  shift 2
  output=$("$@" 2>&1)
  if jq -e "$filter" <<< "$output" > /dev/null 2>&1; then
    echo "ok - $name"
  else
    echo "not ok - $name: see below"
    echo "$filter does not hold for: $output"
    status=1
  fi
}

# says NAME STATUS TEXT COMMAND...: the command ends with STATUS and prints TEXT.
says() {
  local name=$1 wanted=$2 text=$3 output ended
  shift 3
  output=$("$@" 2>&1)
  ended=$?
  if [ "$ended" = "$wanted" ] && [[ $output == *"$text"* ]]; then
    echo "ok - $name"
  else
    echo "not ok - $name: exit status $ended, said: $output"
    status=1
  fi
}

# doctor NAME WHAT LEVEL TEXT: in the doctor's line on WHAT.
doctor() {
  shows "$1" "any(.[]; .what == \"$2\" and .status == \"$3\" and (.finding + .remedy | contains(\"$4\")))" \
    adverb doctor --json
}

# shellcheck disable=SC2317 # called by the functions above
as_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"; }

# The debug kernel is built without what refuses modules.
unsigned="lockdown not told"
if ! debug_kernel; then
  need mount -t securityfs securityfs /sys/kernel/security
  unsigned="lockdown none"
fi

shows "stat says nothing of a module that is not loaded" 'has("module") | not' adverb stat --json
doctor "doctor says that the module is not loaded, and how it would be" "kernel module" ok "not loaded; \`modprobe adverb\` loads"
doctor "doctor says that the kernel takes unsigned modules" "module signing" ok "$unsigned"
says "events of a module that is not loaded: an error" 1 "adverb.ko is not loaded" adverb stat --events

# A program that READs unpinned memory, and the line of adverb stat on the devices of its peers.
np=$(mktemp -d)
ADVERB_STATS_FILE=$np/stats.%p adverb run --policy "$(dirname "$0")/../verify/policies/np.json" -- \
  "$ADVERB_BUILD/test/verify/verify" --role both --device rxe0 --case data.rc.read --log "$np/log" > "$np/out" 2>&1
shows "stat of a program says why its peers' devices cannot read what is unpinned" \
  'any(.[]; .no_views | strings | contains("rxe0") and contains("adverb.ko is not loaded"))' \
  jq -s . "$np"/stats.*

load adverb_test_edu
coproc HOLDER { exec "$programs/np_region" --hold; }
pid=$HOLDER_PID
need read -r _ <&"${HOLDER[0]}"
region="any(.module.regions[]; .pid == $pid and .region == 1 and .length == 262144 and .extents == 1 and
  .counters.enter == 16 and .charged_pages > 0)"
shows "stat shows a process' region and its counters" "$region" adverb stat --json
shows "stat of that process shows it, too, though it does not run under adverb" \
  "$region and .pid == $pid" adverb stat --json -p "$pid"
shows "stat shows the module's counters and limits" \
  '.module.counters.enter >= 16 and .module.limits == {"regions": 8192, "pages": 1048576}' adverb stat --json
says "stat of another process does not" 1 "process 1 shows no numbers" adverb stat -p 1
says "stat tells it to people" 0 "$pid region 1: 0x" adverb stat
shows "another user sees none of it" '.module.regions == [] and .module.counters.enter >= 16' \
  as_nobody adverb stat --json
doctor "doctor says which module is loaded" "kernel module" ok "adverb.ko 2 is loaded"
doctor "doctor has tried a device that cannot read through the module" "device rxe0" warn "does not READ unpinned memory"
doctor "doctor shows the module's limits" "module limits" ok "8192 regions and 4096 MiB"
doctor "doctor asks for the udev rule where the device is root's" "/dev/adverb" warn "60-adverb.rules"
need chgrp rdma /dev/adverb
doctor "doctor is content with group rdma" "/dev/adverb" ok "group rdma, mode 0660"

# A device without IOMMU is refused, and the listener hears it. When it began to listen cannot be seen, so
# there is a refusal for it until it has heard one.
says "events are not for everyone" 1 "not permitted" as_nobody timeout 20 adverb stat --events
events=$(mktemp)
adverb stat --events --json > "$events" &
listener=$!
for ((tries = 0; tries < 20; tries++)); do
  need "$programs/np_device" identity > /dev/null
  [ ! -s "$events" ] || break
done
shows "events tell of a refused device, with the boot option it needs" \
  '.region == 1 and (.reason | contains("iommu.passthrough=0"))' head -n 1 "$events"
heard=$(wc -l < "$events")
for ((tries = 0; tries < 20; tries++)); do
  need "$programs/np_device" identity > /dev/null
  [ "$(wc -l < "$events")" = "$heard" ] || break
done
shows "events go on" "length > $heard" jq -s . "$events"
if kill "$listener"; then
  echo "ok - who listens goes on until interrupted"
else
  echo "not ok - who listens goes on until interrupted: adverb stat --events ended"
  status=1
fi
wait "$listener" 2> /dev/null
shows "refusals are counted" '.module.counters.refused >= 1' adverb stat --json

input=${HOLDER[1]}
exec {input}>&-
wait "$pid"
shows "a region that is gone is shown no more" ".module.regions == []" adverb stat --json
unload adverb_test_edu || status=1
doctor "doctor says that the module is not loaded after it was unloaded" "kernel module" ok "not loaded"
shows "stat says nothing of a module that was unloaded" 'has("module") | not' adverb stat --json

# refused HOW: the kernel does not take adverb.ko, which nobody has signed.
refused() {
  if modprobe adverb 2> /dev/null; then
    echo "not ok - under $1 the kernel refuses the unsigned module: it is loaded"
    status=1
    rmmod adverb
  else
    echo "ok - under $1 the kernel refuses the unsigned module"
  fi
}
if debug_kernel; then
  echo "ok - under lockdown the kernel refuses the unsigned module # SKIP the debug kernel is built without lockdown"
  exit "$status"
fi
echo integrity > /sys/kernel/security/lockdown
refused "lockdown"
doctor "doctor says so under lockdown" "module signing" warn "lockdown integrity"
echo 1 > /sys/module/module/parameters/sig_enforce
refused "module.sig_enforce"
doctor "doctor says so under module.sig_enforce" "module signing" warn "module.sig_enforce on"
exit "$status"
