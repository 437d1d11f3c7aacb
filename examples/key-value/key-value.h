// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#pragma once

#include "end.h"

struct options {
  struct place place;
  // The server's.
  uint64_t table_bytes, region_bytes, slot_bytes;
  unsigned writers;
  int fill, keep;
  // The client's.
  const char* server;
  uint64_t operations; // of the mix
  double seconds;      // 0: by number
  double theta;
  unsigned gets; // percent
  unsigned depth;
  uint64_t seed;
  int load, sweep, events, json;
};

int serve(const struct options* options);
int ask(const struct options* options);
