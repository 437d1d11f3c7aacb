// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "pages.h"

#include "memory/folios.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

namespace sim {

namespace {

std::vector<Pages*>& all() {
  static std::vector<Pages*> pages;
  return pages;
}

// At the same place within a huge page each time, as what is leased depends on that.
std::byte* map(int fd, size_t bytes) {
  constexpr uintptr_t grain = adverb::memory::huge_page;
  void* const room =
      mmap(nullptr, bytes + 2 * grain, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const uintptr_t from = (reinterpret_cast<uintptr_t>(room) + grain - 1) & ~(grain - 1);
  void* const at = room == MAP_FAILED ? MAP_FAILED
                                      : mmap(reinterpret_cast<void*>(from), bytes,
                                             PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  if (at == MAP_FAILED) {
    perror("sim: mmap");
    exit(2);
  }
  return static_cast<std::byte*>(at);
}

} // namespace

Pages::Pages(size_t bytes) : bytes_(bytes) {
  const int fd = memfd_create("sim", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    perror("sim: memfd_create");
    exit(2);
  }
  mine_ = map(fd, bytes);
  kept_ = map(fd, bytes);
  close(fd);
  all().push_back(this);
}

void Pages::take_away(size_t from, size_t bytes) {
  away_from_ = from;
  away_ = bytes;
  if (mprotect(mine_ + from, bytes, PROT_NONE) != 0)
    abort();
}

void Pages::give_back() {
  if (away_ != 0 && mprotect(mine_ + away_from_, away_, PROT_READ | PROT_WRITE) != 0)
    abort();
  away_ = 0;
}

bool Pages::are_huge(uintptr_t at) {
  return std::ranges::any_of(all(), [&](const Pages* one) { return one->has(at) && one->huge; });
}

bool Pages::any_foreign(uintptr_t from) {
  for (const Pages* one : all())
    if (one->has(from) && one->foreign)
      return true;
  return false;
}

void Pages::renew() {
  foreign = huge = false;
  give_back();
  memset(kept_, 0, bytes_);
}

bool Pages::lacks(uintptr_t from, size_t bytes) const {
  const uintptr_t away = reinterpret_cast<uintptr_t>(mine_) + away_from_;
  return away_ != 0 && from < away + away_ && away < from + bytes;
}

std::byte* Pages::kept(void* at) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  for (const Pages* one : all())
    if (one->has(address))
      return one->kept_ + (address - reinterpret_cast<uintptr_t>(one->mine_));
  return static_cast<std::byte*>(at);
}

bool Pages::all_there(uintptr_t from, size_t bytes) {
  for (const Pages* one : all())
    if (one->lacks(from, bytes))
      return false;
  return true;
}

Pages& pages_of(uint32_t program, uint32_t part, size_t bytes) {
  static std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<Pages>> every;
  auto& one = every[{program, part}];
  if (!one)
    one = std::make_unique<Pages>(bytes);
  one->renew();
  return *one;
}

} // namespace sim
