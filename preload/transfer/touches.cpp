// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "transfer/touches.h"

#include <algorithm>

namespace adverb::transfer {

namespace {

uint32_t aged(uint32_t count, uint32_t terms) {
  return terms < 32 ? count >> terms : 0;
}

} // namespace

Touches::Set& Touches::set_of(uint32_t key, uint64_t number) noexcept {
  return (*sets_)[((number ^ (uint64_t{key} << 7)) * 0x9E3779B97F4A7C15U) >> (64 - set_bits)];
}

Touches::Part* Touches::find(uint32_t key, uint64_t address) noexcept {
  const uint64_t number = address >> part_bits;
  if (sets_ == nullptr)
    return nullptr;
  for (Part& part : set_of(key, number))
    if (part.key == key && part.number == number && part.term != 0)
      return &part;
  return nullptr;
}

Touches::Part& Touches::touch(uint32_t key, uint64_t address, uint64_t length, uint32_t term) {
  if (sets_ == nullptr)
    sets_ = std::make_unique<std::array<Set, size_t{1} << set_bits>>();
  Part* part = find(key, address);
  if (part == nullptr) {
    const uint64_t number = address >> part_bits;
    part = std::ranges::min_element(set_of(key, number), {},
                                    [&](const Part& p) { return aged(p.count, term - p.term); });
    *part = {key, one, number, address + length, term, 0};
    return *part;
  }
  part->count = aged(part->count, term - part->term);
  part->term = term;
  if (address != part->next && part->count < UINT32_MAX - one)
    part->count += one;
  part->next = address + length;
  return *part;
}

} // namespace adverb::transfer
