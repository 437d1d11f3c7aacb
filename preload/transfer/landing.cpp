// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "transfer/landing.h"

#include <array>
#include <cstring>

namespace adverb::transfer {

namespace {

// As many words as one register of the processor has; `bytes`: a multiple of 4.
template <size_t Width>
[[gnu::always_inline]] inline bool any_equal_of(const std::byte* came, const std::byte* pattern,
                                                size_t bytes) noexcept {
  using Words [[gnu::vector_size(Width)]] = uint32_t;
  constexpr size_t stride = 4 * Width;
  size_t at = 0;
  for (; at + stride <= bytes; at += stride) {
    Words equal{};
    for (size_t i = 0; i < stride; i += Width) {
      Words a, b;
      memcpy(&a, came + at + i, Width);
      memcpy(&b, pattern + at + i, Width);
      equal |= a == b;
    }
    std::array<uint64_t, Width / sizeof(uint64_t)> parts;
    memcpy(parts.data(), &equal, Width);
    uint64_t any = 0;
    for (const uint64_t part : parts)
      any |= part;
    if (any != 0)
      return true;
  }
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

} // namespace adverb::transfer
