#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# The rules of the house that a machine can see.
# gate: yes
# shellcheck source=test/checks/lib.sh
. "$(dirname "$0")/lib.sh"

# JSON has no comments, and the licence texts are what they are.
without_licence_line() {
  tracked ':!*.json' ':!COPYING*' ':!LICENSES/' ':!*.golden' | while read -r file; do
    head -n 3 "$file" | grep -q 'SPDX-License-Identifier:' || echo "$file"
  done
}

folders_without_readme() {
  tracked | while read -r file; do dirname "$file"; done | sort -u | while read -r folder; do
    # Hidden folders and a folder's own data hang on the README above them.
    case "/$folder/" in
      /./ | */.*/ | */bin/ | */corpus/ | */data/) continue ;;
    esac
    [ -e "$folder/README.md" ] || echo "$folder"
  done
}

# Assembled here so that this file is not its own finding.
unfinished_markers() {
  tracked ':!COPYING*' ':!test/checks/' | xargs -r grep -nwE 'TODO|FIXME|XXX|HACK'
}

machine_paths() {
  tracked ':!COPYING*' ':!test/checks/' | xargs -r grep -nE '(^|[^a-zA-Z0-9_.$}/-])/(home|root|work|Users)/[A-Za-z0-9_.-]+'
}

entries_outside_layout() {
  tracked | cut -d/ -f1 | sort -u | grep -vxE 'meson.build|preload|kernel|policy|examples|test|scripts|README.md|COPYING|\..*'
}

# A fault that is not there any more proves nothing of the simulation, the liar or the module's tests.
faults_that_do_not_apply() {
  local fault
  for fault in test/sim/mutants/*.patch test/liar/mutants/*.patch test/kernel/broken/*.patch; do
    git apply --check "$fault" 2> /dev/null || echo "$fault"
  done
}

check_empty "every file names its licence" without_licence_line
check_empty "every folder has a README.md" folders_without_readme
check_empty "nothing is marked as unfinished" unfinished_markers
check_empty "no file names a path of somebody's machine" machine_paths
check_empty "the top level is as agreed" entries_outside_layout
check_empty "every fault of the simulation, the liar and the module can be made" faults_that_do_not_apply
finish
