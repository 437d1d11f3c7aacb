// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "arena.h"

#include <string.h>

int arena_start(struct arena* arena, void* memory, size_t bytes) {
  *arena = (struct arena){.memory = memory, .bytes = bytes};
  arena->part = bytes / orders & ~(((size_t)1 << most_order) - 1);
  return arena->part != 0;
}

void* arena_take(struct arena* arena, size_t bytes) {
  int order = least_order;
  while (order <= most_order && bytes > (size_t)1 << order)
    order++;
  if (order > most_order)
    return NULL;
  const int i = order - least_order;
  void* block = arena->freed[i];
  if (block) {
    memcpy(&arena->freed[i], block, sizeof(void*)); // a free block holds the next one's address
    return block;
  }
  if (arena->begun[i] + ((size_t)1 << order) > arena->part)
    return NULL;
  block = arena->memory + (size_t)i * arena->part + arena->begun[i];
  arena->begun[i] += (size_t)1 << order;
  return block;
}

void arena_free(struct arena* arena, void* block) {
  if (!block)
    return;
  const size_t i = (size_t)((char*)block - arena->memory) / arena->part;
  memcpy(block, &arena->freed[i], sizeof(void*));
  arena->freed[i] = block;
}
