// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A copy from or to a program's memory takes its time: before it and after it another thread may go
// on. The linker puts these in the place of the library's functions (--wrap), which they call.
#include "fibre.h"

#include <cstddef>

namespace {

using Copy = bool(void*, const void*, size_t) noexcept;

extern "C" {
Copy real_read asm("__real__ZN6adverb6memory4readEPvPKvm");
Copy real_write asm("__real__ZN6adverb6memory5writeEPvPKvm");
Copy real_write_in_order asm("__real__ZN6adverb6memory14write_in_orderEPvPKvm");
bool never_here(const void*, size_t) noexcept asm("__wrap__ZN6adverb6memory7is_hereEPKvm");
Copy slow_read asm("__wrap__ZN6adverb6memory4readEPvPKvm");
Copy slow_write asm("__wrap__ZN6adverb6memory5writeEPvPKvm");
Copy slow_write_in_order asm("__wrap__ZN6adverb6memory14write_in_orderEPvPKvm");
}

bool slowly(Copy& copy, void* to, const void* from, size_t bytes) noexcept {
  sim::point();
  const bool good = copy(to, from, bytes);
  sim::point();
  return good;
}

} // namespace

extern "C" {
// Any page may be one that is slow to come.
bool never_here(const void*, size_t) noexcept {
  return false;
}
bool slow_read(void* to, const void* from, size_t bytes) noexcept {
  return slowly(real_read, to, from, bytes);
}
bool slow_write(void* to, const void* from, size_t bytes) noexcept {
  return slowly(real_write, to, from, bytes);
}
bool slow_write_in_order(void* to, const void* from, size_t bytes) noexcept {
  return slowly(real_write_in_order, to, from, bytes);
}
}
