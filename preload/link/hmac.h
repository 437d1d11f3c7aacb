// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// HMAC-SHA256 (RFC 2104, FIPS 180-4), so that the preload needs no cryptographic library of the
// program's process. Only control messages pass here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace adverb::link {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::span<const std::byte> data);
Digest hmac_sha256(std::span<const uint8_t> key, std::span<const std::byte> data);
// In constant time.
bool equal(const Digest& a, const Digest& b) noexcept;

} // namespace adverb::link
