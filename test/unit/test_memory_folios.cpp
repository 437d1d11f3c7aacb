// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a page's registration keeps in place is known where the kernel says, and thought to be much
// where it does not.
#include "catch.h"
#include "memory/folios.h"
#include "skip.h"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <sys/mman.h>

namespace {

using namespace adverb::memory;

struct Aligned {
  explicit Aligned(int advice) {
    room = mmap(nullptr, 2 * huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(room != MAP_FAILED);
    at = (reinterpret_cast<uintptr_t>(room) + huge_page - 1) & ~(huge_page - 1);
    madvise(reinterpret_cast<void*>(at), huge_page, advice);
    memset(reinterpret_cast<void*>(at), 1, huge_page);
  }
  ~Aligned() { munmap(room, 2 * huge_page); }
  void* room;
  uintptr_t at;
};

// Of the mapping that begins there, in kB; -1: there is none.
long huge_there(uintptr_t address) {
  std::ifstream maps("/proc/self/smaps");
  bool its = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long from = 0, to = 0;
    if (sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2)
      its = from <= address && address < to;
    long kilobytes = 0;
    if (its && sscanf(line.c_str(), "AnonHugePages: %ld kB", &kilobytes) == 1)
      return kilobytes;
  }
  return -1;
}

TEST_CASE("a part of a huge page is known for one, wherever it is") {
  const Aligned memory(MADV_HUGEPAGE);
  if (huge_there(memory.at) <= 0) {
    adverb::test::skip("this host makes no huge pages");
    return;
  }
  CHECK(is_huge(memory.at));
  CHECK(is_huge(memory.at + 12345));
  CHECK(is_huge(memory.at + huge_page - 1));
  // Given back in part, it is one no more.
  REQUIRE(madvise(reinterpret_cast<void*>(memory.at), 4096, MADV_DONTNEED) == 0);
  if (huge_there(memory.at) == 0)
    CHECK_FALSE(is_huge(memory.at + 8192));
}

TEST_CASE("a small page is known for one where the kernel says what pages are") {
  const Aligned huge(MADV_HUGEPAGE);
  const Aligned small(MADV_NOHUGEPAGE);
  REQUIRE(huge_there(small.at) <= 0);
  Aligned gone(MADV_NOHUGEPAGE);
  REQUIRE(madvise(reinterpret_cast<void*>(gone.at), huge_page, MADV_DONTNEED) == 0);
  // One that does not say takes both for huge.
  if (huge_there(huge.at) > 0 && is_huge(small.at) && is_huge(gone.at)) {
    adverb::test::skip("this kernel does not say what pages are");
    return;
  }
  CHECK_FALSE(is_huge(small.at));
  CHECK_FALSE(is_huge(gone.at));
}

TEST_CASE("what is in memory around some bytes ends where a page is not, and where it is told to") {
  constexpr uintptr_t page = 4096;
  const Aligned memory(MADV_NOHUGEPAGE);
  const uintptr_t at = memory.at;
  const auto is = [](const Range& found, uintptr_t from, uintptr_t to) {
    return found.from == from && found.to == to;
  };
  CHECK(is(resident_around({at + 5000, at + 5001}, {at + 10, at + 9 * page}), at + 10,
           at + 9 * page));
  for (const uintptr_t gone : {2 * page, 6 * page})
    REQUIRE(madvise(reinterpret_cast<void*>(at + gone), page, MADV_DONTNEED) == 0);
  const Range within{at, at + 9 * page};
  CHECK(is(resident_around({at, at + 1}, within), at, at + 2 * page));
  CHECK(is(resident_around({at + 4 * page, at + 5 * page}, within), at + 3 * page, at + 6 * page));
  CHECK(is(resident_around({at + 8 * page, at + 9 * page}, within), at + 7 * page, at + 9 * page));
  CHECK(resident_around({at + 2 * page, at + 2 * page + 1}, within).to == 0);
  CHECK(resident_around({at + page, at + 3 * page}, within).to == 0);
}

} // namespace
