// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the cases of this program share, and those that have a file of their own. Each prints a line
// that is the same with adverb and without.
#pragma once

#include "../overlap/ends.h"

inline void must(bool good, const char* what) {
  if (!good)
    die(what);
}

// `count` WRITEs of 64 bytes, and READs of as many from elsewhere, one at a time, compared.
void requests(Ends& ends, unsigned count);
// The same between ends of its own.
void requests(unsigned count);

// descriptors.cpp
void descriptors(bool by_range);
void numbers();
void contexts();
void children();
void closed_first();
void own_stderr();
void close_cancelled();
