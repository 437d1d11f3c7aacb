// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What adverb.ko's netlink messages say, as values. Reading one trusts no length in it: a message
// that is cut short, has an attribute of another width than kernel/adverb_uapi.h gives it, twice or
// not at all, is refused whole. Attributes of a newer module are passed over. No I/O here.
#pragma once

#include "../../kernel/adverb_uapi.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>

namespace adverb::module {

struct Counter {
  adverb_genl_attribute attribute;
  const char* name; // as in the uapi header and in JSON
  const char* unit;
  const char* help;
};
inline constexpr auto kCounters = std::to_array<Counter>({
    {ADVERB_ATTR_ENTER, "enter", "pages", "pages that came into a view"},
    {ADVERB_ATTR_LEAVE, "leave", "pages", "pages the kernel took away"},
    {ADVERB_ATTR_MINOR, "minor", "faults", "faults served from memory by fault-in"},
    {ADVERB_ATTR_MAJOR, "major", "faults", "faults that waited for storage"},
    {ADVERB_ATTR_RETARGETS, "retargets", "entries", "IOMMU entries rewritten"},
    {ADVERB_ATTR_SYNCS, "syncs", "flushes", "IOTLB flushes waited for"},
    {ADVERB_ATTR_REMAPS, "remaps", "pages", "pages brought back without a fault"},
    {ADVERB_ATTR_REFUSED, "refused", "requests", "fault-ins and devices refused"},
});
using Counts = std::array<uint64_t, kCounters.size()>; // in the order of kCounters

struct Region {
  uint32_t pid = 0;
  uint32_t uid = 0;
  uint32_t number = 0; // within the process' file
  uint64_t start = 0;
  uint64_t length = 0;
  uint32_t extents = 0;
  uint32_t attachments = 0; // devices that reach it
  uint64_t charged_pages = 0;
  bool destroyed = false; // held only by devices, or by tables that are mapped
  Counts counts{};
};

struct Limits { // of one user
  uint32_t regions = 0;
  uint64_t pages = 0; // table pages of 4 KiB
};

struct Event {
  uint32_t pid = 0;
  uint32_t region = 0;
  std::string reason;
};

struct Malformed {
  std::string text; // what is wrong with which part
};
template <typename T> using Parsed = std::variant<T, Malformed>;

using Bytes = std::span<const std::byte>;

// A whole netlink message each, from its header on: an answer of `family` to `command`.
Parsed<Region> parse_region(Bytes message, uint16_t family);
Parsed<Counts> parse_statistics(Bytes message, uint16_t family);
Parsed<Limits> parse_limits(Bytes message, uint16_t family);
Parsed<Event> parse_event(Bytes message, uint16_t family);

} // namespace adverb::module
