// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "table.h"

static uint64_t mixed(uint64_t x) { // the finalizer of MurmurHash3: every bit depends on all
  x = (x ^ x >> 33) * 0xff51afd7ed558ccd;
  x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53;
  return x ^ x >> 33;
}

static size_t words(size_t bytes) {
  return (bytes - sizeof(struct slot)) / sizeof(uint64_t);
}

static uint64_t seed(uint64_t key, uint64_t version) {
  return mixed(key + mixed(version));
}

static uint64_t next(uint64_t x) { // Knuth's MMIX generator: a multiplication for each word
  return x * 6364136223846793005u + 1442695040888963407u;
}

static uint64_t check_of(const struct slot* slot, size_t bytes) {
  uint64_t sum = mixed(slot->key) ^ slot->version;
  for (size_t i = 0; i < words(bytes); i++)
    sum = (sum ^ slot->value[i]) * 0x100000001b3 + (sum >> 47);
  return mixed(sum);
}

void make_slot(struct slot* slot, size_t bytes, uint64_t key, uint64_t version) {
  uint64_t x = seed(key, version);
  slot->key = key;
  slot->version = version;
  for (size_t i = 0; i < words(bytes); i++)
    slot->value[i] = x = next(x);
  slot->check = check_of(slot, bytes);
}

// Pages that nobody has written read as zeros.
static int empty(const struct slot* slot, size_t bytes) {
  uint64_t any = slot->check | slot->key | slot->version;
  for (size_t i = 0; i < words(bytes); i++)
    any |= slot->value[i];
  return any == 0;
}

enum verdict judge_slot(const struct slot* slot, size_t bytes, uint64_t key, uint64_t least,
                        uint64_t most) {
  if (slot->version == 0 && empty(slot, bytes))
    return least == 0 ? whole : broken;
  if (slot->check != check_of(slot, bytes))
    return torn;
  if (slot->key != key || slot->version < least || slot->version > most)
    return broken;
  uint64_t x = seed(key, slot->version);
  for (size_t i = 0; i < words(bytes); i++)
    if (slot->value[i] != (x = next(x)))
      return broken;
  return whole;
}
