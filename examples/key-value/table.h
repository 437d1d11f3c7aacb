// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The table as both ends know it: slots of one size, one for each key, in several memory regions.
// What a slot holds follows from its key and version, so that whoever reads it can tell whether
// every byte is right.
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { table_magic = 0x01544b56, most_regions = 4096, least_slot = 64 };

// What the server tells a new client; `regions` times where{} follow.
struct welcome {
  uint32_t magic, regions;
  uint64_t slots, slot_bytes, slots_per_region;
  uint32_t writer, writers; // key % writers == writer: this client's to write
  uint32_t session;         // counts clients from 1 on; 0 is the server's own
  uint32_t filled;          // every key has had a value since the server began
};
struct where {
  uint64_t address;
  uint32_t rkey, zero;
};

// `check` is of all that follows it. A version counts up in its low half, under the session that
// wrote it in its high one: of two versions of a key the later is the greater. 0: never written.
struct slot {
  uint64_t check, key, version;
  uint64_t value[];
};

static inline uint64_t version_of(uint32_t session, uint32_t number) {
  return (uint64_t)session << 32 | number;
}

void make_slot(struct slot* slot, size_t bytes, uint64_t key, uint64_t version);

enum verdict {
  whole,  // of `key`, of a version that may be there, and every byte right
  torn,   // neither one version nor another: somebody is writing it just now, or it is broken
  broken, // whole, but not what can be there
};
enum verdict judge_slot(const struct slot* slot, size_t bytes, uint64_t key, uint64_t least,
                        uint64_t most);
