// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "policy/format.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace adverb::policy {
namespace {

struct Unit {
  std::string_view name;
  unsigned shift;
};
constexpr Unit units[] = {{"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};

// A decimal number without sign or leading zeros, and what follows it.
struct Number {
  uint64_t value;
  std::string_view rest;
};
std::optional<Number> leading_number(std::string_view text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, number.value);
  if (failure != std::errc{} || (text[0] == '0' && stop != text.data() + 1))
    return std::nullopt;
  number.rest = {stop, static_cast<size_t>(end - stop)};
  return number;
}

std::optional<uint64_t> shifted(uint64_t value, unsigned shift) {
  if (shift != 0 && value >> (64 - shift) != 0)
    return std::nullopt;
  return value << shift;
}

std::string lowered(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}

// "64kb", "64 K", "64k", "64" → "64KiB", "64B".
std::string suggest_size(std::string_view text) {
  const auto number =
      leading_number(text.substr(std::min(text.find_first_not_of(' '), text.size())));
  if (!number)
    return {};
  std::string unit = lowered(number->rest);
  std::erase(unit, ' ');
  for (const Unit& candidate : units) {
    const std::string full = lowered(candidate.name);
    const bool meant =
        unit == full || (unit.empty() && candidate.shift == 0) ||
        (candidate.shift > 0 && (unit == full.substr(0, 1) || unit == full.substr(0, 1) + "b"));
    if (meant && shifted(number->value, candidate.shift))
      return std::to_string(number->value) + std::string(candidate.name);
  }
  return {};
}

// "200", "200 MS", "0.2s", "1s" → "…ms".
std::string suggest_duration(std::string_view text) {
  const auto number = leading_number(text);
  if (!number)
    return {};
  std::string unit = lowered(number->rest);
  std::erase(unit, ' ');
  if (unit == "s" && number->value > 0 && number->value < 1000)
    return std::to_string(number->value * 1000) + "ms";
  if (unit.empty() || unit == "ms" || unit.starts_with("msec") || unit.starts_with("milli"))
    return std::to_string(number->value) + "ms";
  return {};
}

void clear_beyond(in6_addr& address, unsigned bits) {
  for (unsigned i = 0; i < 16; ++i) {
    const unsigned kept = bits <= 8 * i ? 0 : std::min(8u, bits - 8 * i);
    address.s6_addr[i] &= static_cast<uint8_t>(0xff00u >> kept);
  }
}

// Like parse_cidr, but keeps bits beyond the prefix.
std::optional<Cidr> parse_loose_cidr(std::string_view text) {
  const size_t slash = text.find('/');
  const std::string_view host = text.substr(0, slash);
  const auto address = parse_address(host);
  if (!address)
    return std::nullopt;
  const bool v4 = host.find(':') == std::string_view::npos;
  uint64_t bits = v4 ? 32 : 128;
  if (slash != std::string_view::npos) {
    const auto number = leading_number(text.substr(slash + 1));
    if (!number || !number->rest.empty() || number->value > bits)
      return std::nullopt;
    bits = number->value;
  }
  return Cidr{*address, static_cast<unsigned>(bits + (v4 ? 96 : 0))};
}

std::string suggest_cidr(std::string_view text) {
  auto range = parse_loose_cidr(text);
  if (!range)
    return {};
  clear_beyond(range->address, range->bits);
  return cidr_text(*range);
}

std::string suggest_peer(std::string_view text) {
  if (leading_number(text) && leading_number(text)->rest.empty())
    return "lid:" + std::string(text);
  const std::string low = lowered(text);
  if (low != text && parse_peer(low))
    return low;
  return {};
}

// "7f00", "0X7f00" → "0x7f00".
std::string suggest_pointer(std::string_view text) {
  const std::string low = lowered(text);
  for (const std::string& meant : {low, "0x" + low})
    if (parse_pointer(meant))
      return meant;
  return {};
}

std::string no_suggestion(std::string_view) {
  return {};
}

bool printable(std::string_view text) {
  return std::ranges::none_of(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

constexpr Format formats[] = {
    {"adverb-size", "a size such as \"64KiB\"",
     [](std::string_view text) { return parse_size(text).has_value(); }, suggest_size, parse_size},
    {"adverb-budget", "a size such as \"64MiB\", or \"auto\"",
     [](std::string_view text) { return text == "auto" || parse_size(text).has_value(); },
     [](std::string_view text) {
       return lowered(text) == "auto" ? std::string("auto") : suggest_size(text);
     },
     parse_size},
    {"adverb-duration", "a duration such as \"200ms\"",
     [](std::string_view text) { return parse_duration(text).has_value(); }, suggest_duration,
     parse_duration},
    {"adverb-cidr", "an address range such as \"10.0.0.0/8\"",
     [](std::string_view text) { return parse_cidr(text).has_value(); }, suggest_cidr},
    {"adverb-pointer", "a memory address such as \"0x7f0000000000\"",
     [](std::string_view text) { return parse_pointer(text).has_value(); }, suggest_pointer},
    {"adverb-address", "an IP address such as \"10.0.0.1\"",
     [](std::string_view text) { return parse_address(text).has_value(); }, no_suggestion},
    {"adverb-peer", "a GID, an IP address, \"lid:NUMBER\" or \"guid:HEX\"",
     [](std::string_view text) { return parse_peer(text).has_value(); }, suggest_peer},
    {"adverb-path", "an absolute path",
     [](std::string_view text) { return text.starts_with('/') && printable(text); }, no_suggestion},
    {"adverb-text", "text without control characters", printable, no_suggestion},
};

} // namespace

std::optional<uint64_t> parse_size(std::string_view text) {
  const auto number = leading_number(text);
  if (!number)
    return std::nullopt;
  for (const Unit& unit : units)
    if (number->rest == unit.name)
      return shifted(number->value, unit.shift);
  return std::nullopt;
}

std::optional<uint64_t> parse_duration(std::string_view text) {
  const auto number = leading_number(text);
  if (!number || number->rest != "ms")
    return std::nullopt;
  return number->value;
}

std::optional<uint64_t> parse_pointer(std::string_view text) {
  if (!text.starts_with("0x"))
    return std::nullopt;
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data() + 2, end, value, 16);
  const bool whole = failure == std::errc{} && stop == end && text.size() <= 18;
  return whole ? std::optional(value) : std::nullopt;
}

std::optional<in6_addr> parse_address(std::string_view text) {
  char buffer[INET6_ADDRSTRLEN];
  if (text.size() >= sizeof(buffer) || text.find('\0') != std::string_view::npos)
    return std::nullopt;
  memcpy(buffer, text.data(), text.size());
  buffer[text.size()] = '\0';
  in6_addr address{};
  if (inet_pton(AF_INET6, buffer, &address) == 1)
    return address;
  if (inet_pton(AF_INET, buffer, &address.s6_addr[12]) != 1)
    return std::nullopt;
  address.s6_addr[10] = address.s6_addr[11] = 0xff;
  return address;
}

std::optional<Cidr> parse_cidr(std::string_view text) {
  const auto range = parse_loose_cidr(text);
  if (!range)
    return std::nullopt;
  in6_addr cleared = range->address;
  clear_beyond(cleared, range->bits);
  if (memcmp(&cleared, &range->address, sizeof(cleared)) != 0)
    return std::nullopt;
  return range;
}

std::optional<LinkSettings::Mapping> parse_peer(std::string_view text) {
  LinkSettings::Mapping mapping;
  if (text.starts_with("lid:")) {
    const auto lid = leading_number(text.substr(4));
    if (!lid || !lid->rest.empty() || lid->value == 0 || lid->value > 0xffff)
      return std::nullopt;
    mapping.by = LinkSettings::Mapping::By::lid;
    mapping.key[0] = static_cast<uint8_t>(lid->value >> 8);
    mapping.key[1] = static_cast<uint8_t>(lid->value);
    return mapping;
  }
  if (text.starts_with("guid:")) {
    std::string digits(text.substr(5));
    std::erase(digits, ':');
    uint64_t guid = 0;
    const char* end = digits.data() + digits.size();
    const auto [stop, failure] = std::from_chars(digits.data(), end, guid, 16);
    if (failure != std::errc{} || stop != end || digits.size() != 16)
      return std::nullopt;
    mapping.by = LinkSettings::Mapping::By::guid;
    for (unsigned i = 0; i < 8; ++i)
      mapping.key[i] = static_cast<uint8_t>(guid >> (56 - 8 * i));
    return mapping;
  }
  const auto address = parse_address(text);
  if (!address)
    return std::nullopt;
  memcpy(mapping.key.data(), address->s6_addr, 16);
  return mapping;
}

std::string size_text(uint64_t bytes) {
  const Unit* best = &units[0];
  for (const Unit& unit : units)
    if (bytes != 0 && bytes % (uint64_t{1} << unit.shift) == 0)
      best = &unit;
  return std::to_string(bytes >> best->shift) + std::string(best->name);
}

std::string address_text(const in6_addr& address) {
  char buffer[INET6_ADDRSTRLEN];
  if (IN6_IS_ADDR_V4MAPPED(&address))
    inet_ntop(AF_INET, &address.s6_addr[12], buffer, sizeof(buffer));
  else
    inet_ntop(AF_INET6, &address, buffer, sizeof(buffer));
  return buffer;
}

std::string cidr_text(const Cidr& range) {
  const bool v4 = IN6_IS_ADDR_V4MAPPED(&range.address) && range.bits >= 96;
  if (v4)
    return address_text(range.address) + "/" + std::to_string(range.bits - 96);
  return address_text(range.address) + "/" + std::to_string(range.bits);
}

const Format* find_format(std::string_view name) {
  for (const Format& format : formats)
    if (format.name == name)
      return &format;
  return nullptr;
}

} // namespace adverb::policy
