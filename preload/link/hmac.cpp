// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/hmac.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace adverb::link {
namespace {

// FIPS 180-4, 4.2.2 and 5.3.3: the first 32 bits of the fractional parts of the cube roots (round
// constants) and square roots (initial value) of the first primes.
constexpr std::array<uint32_t, 64> rounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
constexpr std::array<uint32_t, 8> initial = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

void compress(std::array<uint32_t, 8>& h, const uint8_t* block) {
  std::array<uint32_t, 64> w;
  for (size_t t = 0; t < 16; ++t)
    w[t] = uint32_t{block[4 * t]} << 24 | uint32_t{block[4 * t + 1]} << 16 |
           uint32_t{block[4 * t + 2]} << 8 | block[4 * t + 3];
  for (size_t t = 16; t < 64; ++t) {
    const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  auto v = h;
  for (size_t t = 0; t < 64; ++t) {
    const uint32_t s1 = std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25);
    const uint32_t choose = (v[4] & v[5]) ^ (~v[4] & v[6]);
    const uint32_t t1 = v[7] + s1 + choose + rounds[t] + w[t];
    const uint32_t s0 = std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22);
    const uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
    v = {t1 + s0 + majority, v[0], v[1], v[2], v[3] + t1, v[4], v[5], v[6]};
  }
  for (size_t i = 0; i < 8; ++i)
    h[i] += v[i];
}

} // namespace

Digest sha256(std::span<const std::byte> data) {
  std::vector<uint8_t> padded;
  padded.reserve(data.size() + 72);
  for (const std::byte b : data)
    padded.push_back(static_cast<uint8_t>(b));
  padded.push_back(0x80);
  while (padded.size() % 64 != 56)
    padded.push_back(0);
  const uint64_t bits = data.size() * 8;
  for (int shift = 56; shift >= 0; shift -= 8)
    padded.push_back(static_cast<uint8_t>(bits >> shift));
  auto h = initial;
  for (size_t at = 0; at < padded.size(); at += 64)
    compress(h, &padded[at]);
  Digest out;
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<uint8_t>(h[i / 4] >> (24 - 8 * (i % 4)));
  return out;
}

Digest hmac_sha256(std::span<const uint8_t> key, std::span<const std::byte> data) {
  std::array<uint8_t, 64> block{};
  if (key.size() > block.size()) {
    const Digest short_key = sha256(std::as_bytes(key));
    std::copy(short_key.begin(), short_key.end(), block.begin());
  } else {
    std::copy(key.begin(), key.end(), block.begin());
  }
  std::vector<std::byte> inner(block.size() + data.size());
  std::array<std::byte, block.size() + std::tuple_size_v<Digest>> outer{};
  for (size_t i = 0; i < block.size(); ++i) {
    inner[i] = static_cast<std::byte>(block[i] ^ 0x36);
    outer[i] = static_cast<std::byte>(block[i] ^ 0x5c);
  }
  std::copy(data.begin(), data.end(), inner.begin() + block.size());
  const Digest digest = sha256(inner);
  std::transform(digest.begin(), digest.end(), outer.begin() + block.size(),
                 [](uint8_t b) { return static_cast<std::byte>(b); });
  return sha256(outer);
}

bool equal(const Digest& a, const Digest& b) noexcept {
  uint8_t differ = 0;
  for (size_t i = 0; i < a.size(); ++i)
    differ |= a[i] ^ b[i];
  return differ == 0;
}

} // namespace adverb::link
