#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# The queue, the lanes and the choice name no way; the simulation's oracle knows nothing of what it judges.
# gate: yes
# shellcheck source=test/checks/lib.sh
. "$(dirname "$0")/lib.sh"

ways=$(sed -n 's/^WAY(\([a-z_]*\),.*/\1/p' preload/ways/ways.def)
[ -n "$ways" ] || not_ok "ways.def names ways" "none found"

# Comments may speak of them; code may not. The words as whole words and as parts of names.
named() {
  local pattern
  pattern=$(echo "$ways" | paste -sd'|')
  for file in preload/queue/queue.h preload/queue/queue.cpp preload/queue/failure.cpp preload/queue/qp_lane.h \
    preload/queue/qp_lane.cpp preload/steering/lane.h preload/steering/choose.h preload/steering/choose.cpp \
    preload/steering/request.h preload/steering/stages.h; do
    [ -f "$file" ] || echo "$file is missing"
    sed 's,//.*,,' "$file" | grep -niE "$pattern" | sed "s,^,$file:,"
  done
}

check_empty "queue, lanes and choice name no way" named

known_to_oracle() {
  grep -H '#include "' test/sim/oracle.h test/sim/oracle.cpp test/sim/oracle_end.cpp | grep -v '"oracle.h"'
}

check_empty "the oracle of test/sim includes headers of the language only" known_to_oracle
finish
