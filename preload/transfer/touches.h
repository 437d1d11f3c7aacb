// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How often this process has lately named parts of a peer's memory that it has not leased.
//
// Counts are halved each term, as in TinyLFU (Einziger, Friedman and Manes, 2017), so that what was
// hot once makes room. A table of fixed size, in sets: of a set the part with the lowest count
// goes. A request that goes on where the last one of its part has ended is part of a scan, which
// touches each part once however small its requests are.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace adverb::transfer {

class Touches {
public:
  static constexpr unsigned part_bits = 16;          // of an address within its part
  static constexpr uint32_t one = 4;                 // what a touch counts
  static constexpr uint32_t twice = one + (one / 2); // in this term, or in this and the one before

  struct Part {
    uint32_t key = 0;
    uint32_t count = 0;
    uint64_t number = 0;
    uint64_t next = 0;  // behind the last request
    uint32_t term = 0;  // of the count
    uint32_t asked = 0; // the term in which it was asked for
  };

  // The part that the request begins in, touched in this term; terms are numbered from 1.
  Part& touch(uint32_t key, uint64_t address, uint64_t length, uint32_t term);
  // Null: it is not known, or no longer.
  Part* find(uint32_t key, uint64_t address) noexcept;

private:
  static constexpr size_t ways = 4;
  static constexpr unsigned set_bits = 9;
  using Set = std::array<Part, ways>;
  Set& set_of(uint32_t key, uint64_t number) noexcept;
  std::unique_ptr<std::array<Set, size_t{1} << set_bits>> sets_; // made when first used
};

} // namespace adverb::transfer
