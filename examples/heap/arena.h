// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A heap in one piece of memory, so that it can be registered at once. Every power of two from 64
// bytes to 1 MiB has its own part of it, and in that its own list of what was freed.
#pragma once

#include <stddef.h>

enum { least_order = 6, most_order = 20, orders = most_order - least_order + 1 };

struct arena {
  char* memory;
  size_t bytes, part;   // a part of it for each order
  size_t begun[orders]; // of the part, handed out at least once
  void* freed[orders];
};

// False when `bytes` do not hold one of each.
int arena_start(struct arena* arena, void* memory, size_t bytes);
// NULL when it is full. What comes is aligned to 64 bytes.
void* arena_take(struct arena* arena, size_t bytes);
void arena_free(struct arena* arena, void* block);
