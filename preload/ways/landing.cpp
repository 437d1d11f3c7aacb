// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "ways/landing.h"

#include <array>
#include <cstring>

namespace adverb::ways {

namespace {

// Whether one of the words at `came`, `Count` registers of `Width` bytes, is that of the pattern.
template <size_t Width, size_t Count>
[[gnu::always_inline]] inline bool any_equal_in(const std::byte* came,
                                                const std::byte* pattern) noexcept {
  using Words [[gnu::vector_size(Width)]] = uint32_t;
  Words equal{};
  for (size_t i = 0; i < Count * Width; i += Width) {
    Words a, b;
    memcpy(&a, came + i, Width);
    memcpy(&b, pattern + i, Width);
    equal |= a == b;
  }
  std::array<uint64_t, Width / sizeof(uint64_t)> parts;
  memcpy(parts.data(), &equal, Width);
  uint64_t any = 0;
  for (const uint64_t part : parts)
    any |= part;
  return any != 0;
}

// As many words at once as the processor's registers take; `bytes`: a multiple of 4. Sixteen
// registers between two looks: with four, 4 KiB take half as long again (scripts/bench np).
template <size_t Width>
[[gnu::always_inline]] inline bool any_equal_of(const std::byte* came, const std::byte* pattern,
                                                size_t bytes) noexcept {
  constexpr size_t many = 16;
  size_t at = 0;
  for (; at + many * Width <= bytes; at += many * Width)
    if (any_equal_in<Width, many>(came + at, pattern + at))
      return true;
  for (; at + Width <= bytes; at += Width)
    if (any_equal_in<Width, 1>(came + at, pattern + at))
      return true;
  for (; at < bytes; at += 4)
    if (memcmp(came + at, pattern + at, 4) == 0)
      return true;
  return false;
}

#ifdef __x86_64__
[[gnu::target("avx2")]] bool any_equal_by_avx2(const std::byte* came, const std::byte* pattern,
                                               size_t bytes) noexcept {
  return any_equal_of<32>(came, pattern, bytes);
}
#endif

// Whether a word of the one is that of the other.
bool any_equal(const std::byte* came, const std::byte* pattern, size_t bytes) noexcept {
#ifdef __x86_64__
  // Asked here, and no function of the loader's (IFUNC): sanitizers are not up when that runs.
  if (__builtin_cpu_supports("avx2"))
    return any_equal_by_avx2(came, pattern, bytes);
#endif
  return any_equal_of<16>(came, pattern, bytes);
}

} // namespace

void Landing::look(std::span<const std::byte> bytes, size_t in_page) noexcept {
  const auto one = [&] {
    equal_ &= bytes[0] == pattern_[in_page++];
    ++touched_;
    bytes = bytes.subspan(1);
    if (in_page % word == 0)
      end_of_word();
  };
  while (!bytes.empty() && (in_page % word != 0 || touched_ != 0))
    one();
  const size_t whole = bytes.size() & ~(word - 1);
  found_ = found_ || any_equal(bytes.data(), pattern_.data() + in_page, whole);
  bytes = bytes.subspan(whole);
  in_page += whole;
  while (!bytes.empty())
    one();
}

} // namespace adverb::ways
