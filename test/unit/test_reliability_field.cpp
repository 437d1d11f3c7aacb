// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The field that erasure codes compute in, its matrices, and libisal, which takes the field's
// place.
#include "catch.h"
#include "reliability/gf256.h"
#include "reliability/isal.h"
#include "reliability/matrix.h"

#include <cstring>
#include <dlfcn.h>
#include <random>
#include <vector>

using namespace adverb::reliability;

namespace {

// Polynomials over GF(2), multiplied by hand and reduced by 0x11d.
uint8_t by_hand(unsigned left, unsigned right) {
  unsigned product = 0;
  for (unsigned bit = 0; bit < 8; ++bit)
    if ((right >> bit & 1) != 0)
      product ^= left << bit;
  for (unsigned bit = 15; bit >= 8; --bit)
    if ((product >> bit & 1) != 0)
      product ^= 0x11dU << (bit - 8);
  return static_cast<uint8_t>(product);
}

std::vector<std::byte> random_bytes(std::mt19937& random, size_t count) {
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes)
    byte = static_cast<std::byte>(random());
  return bytes;
}

} // namespace

TEST_CASE("products and inverses are those of the field of 0x11d", "[reliability]") {
  size_t wrong = 0;
  for (unsigned left = 0; left < 256; ++left)
    for (unsigned right = 0; right < 256; ++right)
      wrong += gf256::multiply(static_cast<uint8_t>(left), static_cast<uint8_t>(right)) ==
                       by_hand(left, right)
                   ? 0
                   : 1;
  CHECK(wrong == 0);
  for (unsigned value = 1; value < 256; ++value)
    wrong += by_hand(value, gf256::inverse(static_cast<uint8_t>(value))) == 1 ? 0 : 1;
  CHECK(wrong == 0);
}

TEST_CASE("shards are added and multiplied byte by byte, at any length", "[reliability]") {
  std::mt19937 random(1);
  constexpr size_t guard = 8;
  for (size_t bytes : {0, 1, 7, 31, 32, 33, 64, 100}) {
    const auto before = random_bytes(random, bytes + guard);
    const auto from = random_bytes(random, bytes + guard);
    const auto factor = static_cast<uint8_t>(random());
    auto sum = before;
    auto product = before;
    gf256::add(sum.data(), from.data(), bytes);
    gf256::add_product(product.data(), factor, from.data(), bytes);
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; ++i) {
      wrong += sum[i] == (before[i] ^ from[i]) ? 0 : 1;
      const auto term = std::byte{by_hand(factor, std::to_integer<unsigned>(from[i]))};
      wrong += product[i] == (before[i] ^ term) ? 0 : 1;
    }
    for (size_t i = bytes; i < bytes + guard; ++i)
      wrong += sum[i] == before[i] && product[i] == before[i] ? 0 : 1;
    INFO(bytes << " bytes");
    CHECK(wrong == 0);
  }
}

TEST_CASE("a Cauchy matrix times its inverse is the identity", "[reliability]") {
  for (size_t size : {1, 2, 8, 33, 127}) {
    const Matrix matrix = Matrix::cauchy(size, size);
    const Matrix inverse = matrix.inverse();
    size_t wrong = 0;
    for (size_t row = 0; row < size; ++row)
      for (size_t column = 0; column < size; ++column) {
        unsigned sum = 0;
        for (size_t i = 0; i < size; ++i)
          sum ^= gf256::multiply(matrix.at(row, i), inverse.at(i, column));
        wrong += sum == (row == column ? 1U : 0U) ? 0 : 1;
      }
    INFO(size << " rows");
    CHECK(wrong == 0);
  }
}

TEST_CASE("parity rows are those of libisal's gf_gen_cauchy1_matrix", "[reliability]") {
  void* library = dlopen("libisal.so.2", RTLD_NOW | RTLD_LOCAL);
  INFO("libisal2 has to be installed (scripts/setup)");
  REQUIRE(library != nullptr);
  // `rows` counts data rows, which are the identity, and parity rows.
  const auto generate = reinterpret_cast<void (*)(unsigned char*, int rows, int k)>(
      dlsym(library, "gf_gen_cauchy1_matrix"));
  REQUIRE(generate != nullptr);
  for (const auto& [k, m] :
       std::vector<std::pair<size_t, size_t>>{{1, 1}, {4, 2}, {32, 8}, {223, 32}, {1, 254}}) {
    std::vector<unsigned char> theirs((k + m) * k);
    generate(theirs.data(), static_cast<int>(k + m), static_cast<int>(k));
    const Matrix ours = Matrix::cauchy(k, m);
    INFO("k " << k << ", m " << m);
    CHECK(memcmp(theirs.data() + k * k, ours.elements().data(), k * m) == 0);
  }
  dlclose(library);
}

TEST_CASE("libisal is loaded out of the program's sight, and only if it is whole",
          "[reliability]") {
  INFO("libisal2 has to be installed (scripts/setup)");
  REQUIRE(isal() != nullptr);
  CHECK(isal() == isal());
  CHECK(dlsym(RTLD_DEFAULT, "ec_encode_data") == nullptr);
  CHECK_FALSE(load_isal("libadverb-has-no-such-library.so.2").has_value());
  CHECK_FALSE(load_isal("libm.so.6").has_value()); // has none of the functions
}
