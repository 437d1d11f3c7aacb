# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# Sourced by the scripts of test/system, inside a guest of scripts/vm: starting servers and clients
# on one host or two, what they pin at most, TAP lines.
#
# Under hosts=1 both ends run here; under hosts=2 host 0 serves and host 1 is the client. Either way
# a script reads the same: `pair NAME SERVER CLIENT`. ADVERB_RUN (set by the wrap) goes before both,
# unless server_run or client_run says otherwise (may be empty: stock).

next_port=19000
listener_looks=0
questions=0
scratch=$(mktemp -d)
# What is killed before it has begun runs it, too.
trap '[ "$BASHPID" != $$ ] || rm -rf "$scratch"' EXIT
mkfifo "$scratch/.never"

ok() { echo "ok - ${WRAP:+$WRAP }$1"; }
not_ok() { echo "not ok - ${WRAP:+$WRAP }$1: $2"; }
skip() { echo "ok - ${WRAP:+$WRAP }$1 # SKIP $2"; }

# True on the host that serves (both roles are here under hosts=1).
serves() { [ "$VM_HOST" = 0 ]; }
asks() { [ "$VM_HOSTS" = 1 ] || [ "$VM_HOST" = 1 ]; }

# To start a program takes an emulated processor a tenth of a second, which is the programs' own that
# are tested, so what is done again and again here starts none.
nap() { ! read -rt "$1" _ <> "$scratch/.never"; }

# Waits up to $1 seconds for the command after it to succeed.
await() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$deadline" ] || return 1
    nap 0.05
  done
}

# A TCP or rdma_cm listener on port $1; the process $2 ending is an answer, too.
listening() {
  local hex file sockets
  printf -v hex %04X "$1"
  for file in /proc/net/tcp /proc/net/tcp6; do
    read -rd '' sockets < "$file"
    [[ ! $sockets =~ :$hex\ 0+:0000\ 0A ]] || return 0 # LISTEN
  done
  ended "$2" && return 0
  # A listener of rdma_cm is no socket. The kernel says so before its devices take connections for it: one that has
  # been seen is looked at once more, which takes longer than that.
  ((++listener_looks % 8 == 0)) || return 1
  rdma resource show cm_id 2> /dev/null | grep -q "state LISTEN.*:$1\b" &&
    rdma resource show cm_id 2> /dev/null | grep -q "state LISTEN.*:$1\b"
}

# True when process $1 is gone, or waits for its parent to notice. Read as a whole: a shell that stops at a line cannot
# seek back when the process has gone meanwhile, and hands what it has read too much to its next read, of whatever file.
ended() {
  local text=""
  { IFS= read -rd '' text < "/proc/$1/status"; } 2> /dev/null || :
  [[ ! $text =~ State:[[:space:]]+([A-Z]) ]] || [ "${BASH_REMATCH[1]}" = Z ]
}

# Has the kernel tell, at each return of pinned memory, how much the process then has pinned. Pages are pinned by
# registration alone, so the largest of these figures is the peak, and no moment is missed.
tracing=/sys/kernel/tracing
watch_pins() {
  [ ! -d $tracing/instances/pins ] || return 0
  mountpoint -q $tracing || mount -t tracefs tracefs $tracing || return 1
  echo 'f:adverb/unpin ib_umem_release pages=umem->owning_mm->pinned_vm.counter:s64' >> $tracing/dynamic_events &&
    mkdir $tracing/instances/pins && echo 8192 > $tracing/instances/pins/buffer_size_kb &&
    echo 1 > $tracing/instances/pins/options/record-tgid &&
    echo 1 > $tracing/instances/pins/events/adverb/unpin/enable
}

# Writes to $scratch/$1.peak the KiB that role $1 of the pair that has just ended had pinned and resident at most;
# nothing if the kernel has not told.
write_peaks() {
  local pid rss pin
  { read -r pid < "$scratch/$1.pid" && read -r rss < "$scratch/$1.rss"; } 2> /dev/null || return 0
  # A ring that has lost lines may have lost the peak, and so may a line that names no process. The first number in
  # brackets is the process.
  pin=$(awk -v pid="$pid" '
    /entries-in-buffer/ { split($3, n, "/"); if (n[1] != n[2]) exit 1 }
    / unpin: / {
      if (!match($0, /\( *[0-9]+\)/)) exit 1
      if (substr($0, RSTART + 1, RLENGTH - 2) + 0 != pid) next
      # A view that is given back has no such count: it pins nothing.
      if (!sub(/.*pages=/, "") || $1 == "(fault)") next
      seen = 1; if ($1 + 0 > most) most = $1 + 0 }
    END { if (seen) printf "%d\n", most * 4 }' "$scratch/pins") && [ -n "$pin" ] || return 0
  echo "$pin $rss" > "$scratch/$1.peak"
}

# The words before the program of role $1.
words_of() {
  local name=${1}_run
  echo "${!name-${ADVERB_RUN:-}}"
}

# Starts a program in the background under the wrap: $started, output in $scratch/$1.out, counters of
# adverb in $scratch/$1.json; $scratch/$1.pid and, once it has ended, $scratch/$1.rss (KiB, the largest).
start() {
  local role=$1
  shift
  rm -f "$scratch/$role".*
  local -a before
  read -ra before <<< "$(words_of "$role")" # not in what is started: its first child is to be the program
  ADVERB_STATS_FILE=$scratch/$role.json timeout -k 2 "${PAIR_SECONDS:-120}" "$ADVERB_BUILD/test/system/measured" \
    "$scratch/$role" ${before[@]+"${before[@]}"} "$@" > "$scratch/$role.out" 2>&1 &
  started=$!
}

# both_ends NAME SERVER CLIENT: starts the client when the server listens, PAIR_LISTEN_SECONDS (60) at most after
# it has been started. Commands in which PORT and SERVER stand for the port and the server's
# address. PAIR_LAST_WORDS: seconds that a server has whose client has failed. Returns 0 when both ends exit with 0; the outputs, peaks and counters stay until the next.
both_ends() {
  local name=$1 port=$((next_port++)) address=$VM_IP_0 status=0 server=""
  local -a words
  if [ -n "${PAIR_PEAKS:-}" ]; then
    watch_pins || echo "# $name: the kernel does not tell what is pinned"
    echo > $tracing/instances/pins/trace
  fi 2> /dev/null
  if serves; then
    read -ra words <<< "${2//PORT/$port}"
    start server "${words[@]//SERVER/$address}"
    server=$started
    await "${PAIR_LISTEN_SECONDS:-60}" listening "$port" "$server" || echo "# $name: the server does not listen"
  fi
  [ "$VM_HOSTS" = 1 ] || vm-barrier "pair.$port" || return 1
  if asks; then
    read -ra words <<< "${3//PORT/$port}"
    start client "${words[@]//SERVER/$address}"
    # Without its server it would wait for ever.
    until ended "$started"; do
      [ -z "$server" ] || ! ended "$server" || await 10 ended "$started" || kill "$started"
      nap 0.05
    done
    wait "$started" || status=$?
  fi
  if [ -n "$server" ]; then
    # With the client gone for nothing the server would wait for ever; what it has to say may take a while.
    [ "$status" = 0 ] || await "${PAIR_LAST_WORDS:-0}" ended "$server" || kill "$server" 2> /dev/null
    local served=0
    wait "$server" || served=$?
    [ "$status" != 0 ] || status=$served
  fi
  if [ -n "${PAIR_PEAKS:-}" ]; then
    cat $tracing/instances/pins/trace > "$scratch/pins"
    write_peaks server
    write_peaks client
  fi
  return "$status"
}

# What both ends of the last pair printed, as comments.
outputs() {
  local role
  for role in server client; do
    [ ! -e "$scratch/$role.out" ] || sed "s/^/# $role: /" "$scratch/$role.out"
  done
}

# Prints why role $1 of the last pair was not intercepted; nothing when it ran stock by intent, ran on
# another host, or was.
escaped() {
  [ -n "$(words_of "$1")" ] && [ -e "$scratch/$1.out" ] || return 0
  jq -e '.counters.hooks_calls > 0 and .counters.regions_unpinned > 0' "$scratch/$1.json" > /dev/null 2>&1 ||
    echo "the $1 was not intercepted: $(jq -c '.counters | {hooks_calls, regions_unpinned}' "$scratch/$1.json" 2>&1)"
}

# What a program prints that found wrong data, whatever its exit status.
misread() {
  grep -hsiE 'invalid data|data mismatch|verify failed|is WRONG' "$scratch"/{server,client}.out | head -n 1
}

# True on every host when reason $1 is not empty on one of them.
any_host_has() {
  if [ "$VM_HOSTS" = 1 ]; then
    [ -n "$1" ]
    return
  fi
  local sign=$VM_SHARE/.reason.${VM_JOB:-}.$((++questions))
  [ -z "$1" ] || : > "$sign"
  vm-barrier "judged.${VM_JOB:-}.$questions" && [ -e "$sign" ]
}

# Runs a pair; $why is empty when both ends exit with 0, saw the right data, and those that adverb's
# words stood before were intercepted, with regions not pinned.
judge() {
  local status=0
  both_ends "$@" || status=$?
  if [ "$status" != 0 ]; then
    why="exit status $status"
  else
    why=$(misread)$(escaped server)$(escaped client)
  fi
}

# Says what judge found of the last pair under NAME.
report() {
  if [ -z "$why" ]; then
    ok "$1"
    return 0
  fi
  not_ok "$1" "$why"
  outputs
  return 1
}

# pair NAME SERVER CLIENT: both_ends, judged and reported under NAME.
pair() {
  local why
  judge "$@"
  report "$1"
}

# The peak of VmPin of role $1 in the last pair, in MiB; -1 if it was not measured (PAIR_PEAKS).
peak_pin() {
  local pin=""
  { read -r pin _ < "$scratch/$1.peak"; } 2> /dev/null || :
  [[ $pin =~ ^[0-9]+$ ]] && echo $((pin / 1024)) || echo -1
}

# counter ROLE NAME: a counter of adverb's after the role's program has ended; empty under stock.
counter() {
  [ -s "$scratch/$1.json" ] || return 0
  jq -r ".counters.$2 // .gauges.$2 // empty" "$scratch/$1.json"
}
