# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
# Completion of adverb(1). What it offers comes from the command itself where it can.

_adverb_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur"); }
_adverb_files() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen -f -X '!*.json' -- "$cur"; compgen -d -- "$cur")
}

# The command line behind the options is the program's own.
_adverb_program() {
  local first=$1
  if declare -F _command_offset >/dev/null; then
    _command_offset "$first"
  else
    mapfile -t COMPREPLY < <(compgen -c -- "$cur")
  fi
}

_adverb() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} at
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    _adverb_words "$(adverb help 2>/dev/null | awk '/^  [a-z]+ +[a-z]/ {print $1}') help --version"
    return
  fi
  local options
  case ${COMP_WORDS[1]}:${COMP_WORDS[2]} in
    run:*)
      options="--profile --policy --log --no-children --dry-run --quiet --help"
      at=2
      ;;
    policy:explain)
      options="--profile --policy --device"
      at=3
      ;;
    policy:check)
      _adverb_files
      return
      ;;
    policy:show)
      _adverb_words "default schema $(adverb policy list 2>/dev/null | awk '{print $1}')"
      return
      ;;
    policy:*)
      _adverb_words "check explain list show"
      return
      ;;
    plan:*)
      case $prev in
        --sweep) _adverb_words "loss size rtt" ;;
        --mtu) _adverb_words "256 512 1024 2048 4096" ;;
        --svg)
          compopt -o filenames 2>/dev/null
          mapfile -t COMPREPLY < <(compgen -f -- "$cur")
          ;;
        *) [[ $cur == -* ]] && _adverb_words "$(adverb plan --help 2>/dev/null |
          grep -o -e '--[a-z-]*' | sort -u)" ;;
      esac
      return
      ;;
    *)
      [[ $cur == -* ]] && _adverb_words "$(adverb "${COMP_WORDS[1]}" --help 2>/dev/null |
        grep -o -e '--[a-z-]*' | sort -u)"
      return
      ;;
  esac
  for (( ; at < COMP_CWORD; ++at)); do
    case ${COMP_WORDS[at]} in
      --profile | --policy | --log | --device) ((++at)) ;;
      --)
        _adverb_program $((at + 1))
        return
        ;;
      -*) ;;
      *)
        _adverb_program "$at"
        return
        ;;
    esac
  done
  case $prev in
    --profile) _adverb_words "$(adverb policy list 2>/dev/null | awk '{print $1}')" ;;
    --policy) _adverb_files ;;
    --log) _adverb_words "debug info warn error off" ;;
    --device) _adverb_words "$(cd /sys/class/infiniband 2>/dev/null && echo *)" ;;
    *)
      if [[ $cur == -* ]]; then
        _adverb_words "$options"
      else
        _adverb_program "$COMP_CWORD"
      fi
      ;;
  esac
}
complete -F _adverb adverb
