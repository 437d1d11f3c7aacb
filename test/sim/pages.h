// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Memory of a program, mapped twice: as the program has it, which may take pieces away and give
// them back, and as a device has it that has pinned its pages, which stay. What a program of a
// schedule writes and looks at itself goes by the second, too: a program touches nothing that it
// has unmapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace sim {

class Pages {
public:
  // Whole pages of zeroes.
  explicit Pages(size_t bytes);
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::byte* mine() const { return mine_; } // as the program has it
  std::byte* kept() const { return kept_; } // the same bytes
  // These whole pages, or not any more.
  void take_away(size_t from, size_t bytes);
  void give_back();
  // A device's memory: only its driver can register it.
  bool foreign = false;
  static bool any_foreign(uintptr_t from);
  // Of transparent huge pages: whoever has a byte of one registered keeps all of it in place.
  bool huge = false;
  static bool are_huge(uintptr_t at);
  bool has(const void* at) const { return has(reinterpret_cast<uintptr_t>(at)); }
  // As new, for the next schedule.
  void renew();

  // Where the bytes at an address of any program are; what is no program's is where it is.
  static std::byte* kept(void* at);
  // None of them is taken away.
  static bool all_there(uintptr_t from, size_t bytes);

private:
  bool has(uintptr_t at) const { return at - reinterpret_cast<uintptr_t>(mine_) < bytes_; }
  bool lacks(uintptr_t from, size_t bytes) const;

  const size_t bytes_;
  std::byte* mine_ = nullptr;
  std::byte* kept_ = nullptr;
  size_t away_from_ = 0;
  size_t away_ = 0; // bytes
};

// One for each program of a schedule and part of its memory, for all schedules.
Pages& pages_of(uint32_t program, uint32_t part, size_t bytes);

} // namespace sim
