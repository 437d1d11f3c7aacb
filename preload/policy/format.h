// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The string formats of the policy's schema ("format": "adverb-size" and so on): how to read them,
// and how to tell a person what was expected.
#pragma once

#include "policy/settings.h"

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace adverb::policy {

std::optional<uint64_t> parse_size(std::string_view text);     // "64KiB" → 65536
std::optional<uint64_t> parse_duration(std::string_view text); // "200ms" → 200 (milliseconds)
std::optional<uint64_t> parse_pointer(std::string_view text);  // "0x7f00" → 32512
std::optional<in6_addr> parse_address(std::string_view text);  // IPv4 becomes v4-mapped
std::optional<Cidr> parse_cidr(std::string_view text);         // no bits beyond the prefix
std::optional<LinkSettings::Mapping> parse_peer(std::string_view text); // without .address

std::string size_text(uint64_t bytes); // 65536 → "64KiB"
std::string cidr_text(const Cidr& range);
std::string address_text(const in6_addr& address);

struct Format {
  std::string_view name; // as in the schema
  std::string_view noun; // "a size such as \"64KiB\""
  bool (*valid)(std::string_view);
  std::string (*suggestion)(std::string_view); // a valid text that may be meant, or ""
  std::optional<uint64_t> (*measure)(std::string_view) = nullptr; // for x-minimum and x-maximum
};

// nullptr for a name that is not one of ours.
const Format* find_format(std::string_view name);

} // namespace adverb::policy
