// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "reliability/gf256.h"

#include <array>
#include <cassert>
#include <cstring>

namespace adverb::reliability::gf256 {
namespace {

constexpr unsigned polynomial = 0x11d;
constexpr size_t elements = 256;
constexpr size_t order = elements - 1; // of the multiplicative group, which 2 generates

// The products of one factor with all elements: (high + low) * factor = high * factor + low *
// factor.
struct Products {
  static constexpr unsigned bits = 4;
  static constexpr size_t halves = size_t{1} << bits;

  std::array<uint8_t, halves> of_low{};
  std::array<uint8_t, halves> of_high{};

  constexpr uint8_t with(unsigned element) const {
    return of_low[element % halves] ^ of_high[element >> bits];
  }
};

struct Tables {
  std::array<Products, elements> products{};
  std::array<uint8_t, elements> inverses{};
};

constexpr Tables make_tables() {
  std::array<uint8_t, 2 * order> powers{}; // twice, so that a sum of two logarithms is an index
  std::array<size_t, elements> logarithms{};
  unsigned power = 1;
  for (size_t i = 0; i < order; ++i) {
    powers[i] = powers[i + order] = static_cast<uint8_t>(power);
    logarithms[power] = i;
    power <<= 1;
    if (power >= elements)
      power ^= polynomial;
  }
  Tables tables; // products with 0 are 0
  for (size_t factor = 1; factor < elements; ++factor) {
    tables.inverses[factor] = powers[order - logarithms[factor]];
    auto& products = tables.products[factor];
    for (size_t half = 1; half < Products::halves; ++half) {
      products.of_low[half] = powers[logarithms[factor] + logarithms[half]];
      products.of_high[half] = powers[logarithms[factor] + logarithms[half << Products::bits]];
    }
  }
  return tables;
}

constexpr Tables tables = make_tables();

} // namespace

uint8_t multiply(uint8_t left, uint8_t right) {
  return tables.products[left].with(right);
}

uint8_t inverse(uint8_t value) {
  assert(value != 0);
  return tables.inverses[value];
}

void add(std::byte* into, const std::byte* from, size_t bytes) {
  // Words, four at a time, of which the compiler makes vectors.
  using Words = std::array<uint64_t, 4>;
  size_t at = 0;
  for (; at + sizeof(Words) <= bytes; at += sizeof(Words)) {
    Words sum;
    Words term;
    memcpy(&sum, into + at, sizeof sum);
    memcpy(&term, from + at, sizeof term);
    for (size_t i = 0; i < sum.size(); ++i)
      sum[i] ^= term[i];
    memcpy(into + at, &sum, sizeof sum);
  }
  for (; at < bytes; ++at)
    into[at] ^= from[at];
}

void add_product(std::byte* into, uint8_t factor, const std::byte* from, size_t bytes) {
  const auto& products = tables.products[factor];
  for (size_t at = 0; at < bytes; ++at)
    into[at] ^= std::byte{products.with(std::to_integer<unsigned>(from[at]))};
}

} // namespace adverb::reliability::gf256
