// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/folios.h"
#include "world/no_cancel.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace adverb::memory {

namespace {

// linux/fs.h since 6.7; Debian 12 builds with older headers.
struct PageRegion {
  uint64_t start;
  uint64_t end;
  uint64_t categories;
};
struct ScanArguments {
  uint64_t size;
  uint64_t flags;
  uint64_t start;
  uint64_t end;
  uint64_t walk_end;
  uint64_t regions;
  uint64_t regions_max;
  uint64_t pages_max;
  uint64_t inverted;
  uint64_t all_of;
  uint64_t any_of;
  uint64_t returned;
};
static_assert(sizeof(ScanArguments) == 96);
constexpr unsigned long scan = _IOWR('f', 16, ScanArguments);
constexpr uint64_t page_is_huge = 1 << 6;

// Nothing: this kernel does not say.
std::optional<bool> asked(uintptr_t address) {
  constexpr uintptr_t page = 4096;
  // Not kept open: one that a fork child inherits speaks of its parent.
  const int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return std::nullopt;
  PageRegion found{};
  ScanArguments a{};
  a.size = sizeof a;
  a.start = address & ~(page - 1);
  a.end = a.start + page;
  a.regions = reinterpret_cast<uintptr_t>(&found);
  a.regions_max = 1;
  a.all_of = a.returned = page_is_huge;
  const int n = ioctl(fd, scan, &a);
  close(fd);
  return n < 0 ? std::nullopt : std::optional(n == 1);
}

bool are_made() {
  char modes[64]{};
  const int fd = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
  const bool known = fd >= 0 && read(fd, modes, sizeof modes - 1) > 0;
  if (fd >= 0)
    close(fd);
  return known && strstr(modes, "[never]") == nullptr;
}

} // namespace

bool is_huge(uintptr_t address) {
  const NoCancel whole;
  const auto known = asked(address);
  return known ? *known : are_made();
}

Range resident_around(Range wanted, Range within) {
  constexpr uintptr_t page = 4096;
  const uintptr_t from = within.from & ~(page - 1);
  const uintptr_t to = (within.to + page - 1) & ~(page - 1);
  std::vector<unsigned char> pages((to - from) / page);
  if (pages.empty() || mincore(reinterpret_cast<void*>(from), to - from, pages.data()) != 0)
    return {};
  const auto is_there = [&](uintptr_t at) { return (pages[(at - from) / page] & 1) != 0; };
  Range found{wanted.from & ~(page - 1), wanted.from & ~(page - 1)};
  while (found.to < to && is_there(found.to))
    found.to += page;
  if (found.to < wanted.to)
    return {};
  while (found.from > from && is_there(found.from - page))
    found.from -= page;
  return {std::max(found.from, within.from), std::min(found.to, within.to)};
}

} // namespace adverb::memory
