// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What adverb maps for itself is not where a program wants its own memory again.
#include "catch.h"
#include "memory/own.h"

#include <cstdint>
#include <sys/mman.h>
#include <vector>

namespace {

constexpr size_t bytes = 64 << 10;

void* map_anywhere(size_t length) {
  void* p = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(p != MAP_FAILED);
  return p;
}

bool meets(const void* p, const void* hole) {
  const auto at = reinterpret_cast<uintptr_t>(p);
  const auto from = reinterpret_cast<uintptr_t>(hole);
  return at < from + bytes && from < at + bytes;
}

} // namespace

TEST_CASE("what adverb maps for itself does not come to what the program has just unmapped") {
  char* const all = static_cast<char*>(map_anywhere(3 * bytes));
  char* const hole = all + bytes;
  REQUIRE(munmap(hole, bytes) == 0);
  std::vector<void*> own;
  for (int n = 0; n < 64; ++n) {
    own.push_back(adverb::memory::map_own(bytes, PROT_READ | PROT_WRITE));
    REQUIRE(own.back() != MAP_FAILED);
    *static_cast<char*>(own.back()) = 1;
    CHECK_FALSE(meets(own.back(), hole));
  }
  // Others do, when what lies higher is full.
  std::vector<void*> others;
  bool met = false;
  for (int n = 0; n < 10'000 && !met; ++n)
    met = meets(others.emplace_back(map_anywhere(bytes)), hole);
  CHECK(met);
  for (const auto* const list : {&own, &others})
    for (void* p : *list)
      munmap(p, bytes);
  munmap(all, bytes);
  munmap(all + (2 * bytes), bytes);
}
