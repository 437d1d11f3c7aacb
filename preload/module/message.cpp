// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "module/message.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>

namespace adverb::module {
namespace {

// Thrown and caught in this file: what a message is made of is read in one expression each.
using Refused = Malformed;

template <typename Header> Header header_of(Bytes bytes, const char* what) {
  Header header;
  if (bytes.size() < sizeof header)
    throw Refused{fmt::format("{} bytes are too short for {}", bytes.size(), what)};
  memcpy(&header, bytes.data(), sizeof header);
  return header;
}

Bytes behind(Bytes bytes, size_t length) {
  return bytes.subspan(std::min<size_t>(bytes.size(), NLMSG_ALIGN(length)));
}

// The attributes of a message by number, every length within the message.
class Attributes {
public:
  Attributes(Bytes message, uint16_t family, uint8_t command) {
    const auto header = header_of<nlmsghdr>(message, "a netlink message");
    if (header.nlmsg_len != message.size())
      throw Refused{
          fmt::format("a message of {} bytes says it has {}", message.size(), header.nlmsg_len)};
    if (header.nlmsg_type != family)
      throw Refused{fmt::format("a message of family {} instead of {}", header.nlmsg_type, family)};
    message = behind(message, sizeof header);
    const auto generic = header_of<genlmsghdr>(message, "a generic netlink message");
    if (generic.cmd != command)
      throw Refused{fmt::format("a message of command {} instead of {}", generic.cmd, command)};
    for (Bytes rest = behind(message, sizeof generic); !rest.empty();)
      rest = take(rest);
  }

  uint32_t u32(int attribute) const { return number<uint32_t>(attribute); }
  uint64_t u64(int attribute) const { return number<uint64_t>(attribute); }

  std::string text(int attribute) const {
    const Bytes value = find(attribute);
    if (value.empty() || value.back() != std::byte{0})
      throw Refused{fmt::format("the text of attribute {} does not end", attribute)};
    return reinterpret_cast<const char*>(value.data());
  }

private:
  Bytes take(Bytes rest) {
    const auto header = header_of<nlattr>(rest, "an attribute");
    const int type = header.nla_type & NLA_TYPE_MASK;
    if (header.nla_len < sizeof header || header.nla_len > rest.size())
      throw Refused{fmt::format("attribute {} says it has {} bytes where {} are left", type,
                                header.nla_len, rest.size())};
    const size_t at = static_cast<size_t>(type);
    if (type != ADVERB_ATTR_UNSPEC && type != ADVERB_ATTR_PAD && at < present_.size()) {
      if (std::exchange(present_[at], true))
        throw Refused{fmt::format("attribute {} comes twice", type)};
      values_[at] = rest.subspan(sizeof header, header.nla_len - sizeof header);
    }
    return behind(rest, header.nla_len);
  }

  Bytes find(int attribute) const {
    if (!present_[static_cast<size_t>(attribute)])
      throw Refused{fmt::format("attribute {} is missing", attribute)};
    return values_[static_cast<size_t>(attribute)];
  }

  template <typename T> T number(int attribute) const {
    const Bytes value = find(attribute);
    T out;
    if (value.size() != sizeof out)
      throw Refused{fmt::format("attribute {} has {} bytes instead of {}", attribute, value.size(),
                                sizeof out)};
    memcpy(&out, value.data(), sizeof out);
    return out;
  }

  std::array<Bytes, ADVERB_ATTR_MAX + 1> values_{};
  std::array<bool, ADVERB_ATTR_MAX + 1> present_{};
};

Counts counts_of(const Attributes& attributes) {
  Counts out{};
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = attributes.u64(kCounters[i].attribute);
  return out;
}

template <typename T, typename Read>
Parsed<T> parse(Bytes message, uint16_t family, uint8_t command, Read&& read) {
  try {
    return read(Attributes(message, family, command));
  } catch (const Refused& refused) {
    return refused;
  }
}

} // namespace

Parsed<Region> parse_region(Bytes message, uint16_t family) {
  return parse<Region>(message, family, ADVERB_CMD_REGIONS, [](const Attributes& from) {
    return Region{.pid = from.u32(ADVERB_ATTR_PID),
                  .uid = from.u32(ADVERB_ATTR_UID),
                  .number = from.u32(ADVERB_ATTR_REGION),
                  .start = from.u64(ADVERB_ATTR_START),
                  .length = from.u64(ADVERB_ATTR_LENGTH),
                  .extents = from.u32(ADVERB_ATTR_EXTENTS),
                  .attachments = from.u32(ADVERB_ATTR_ATTACHMENTS),
                  .charged_pages = from.u64(ADVERB_ATTR_CHARGED_PAGES),
                  .destroyed = from.u32(ADVERB_ATTR_DESTROYED) != 0,
                  .counts = counts_of(from)};
  });
}

Parsed<Counts> parse_statistics(Bytes message, uint16_t family) {
  return parse<Counts>(message, family, ADVERB_CMD_STATISTICS, counts_of);
}

Parsed<Limits> parse_limits(Bytes message, uint16_t family) {
  return parse<Limits>(message, family, ADVERB_CMD_LIMITS, [](const Attributes& from) {
    return Limits{.regions = from.u32(ADVERB_ATTR_MAX_REGIONS),
                  .pages = from.u64(ADVERB_ATTR_MAX_PAGES)};
  });
}

Parsed<Event> parse_event(Bytes message, uint16_t family) {
  return parse<Event>(message, family, ADVERB_CMD_EVENT, [](const Attributes& from) {
    return Event{.pid = from.u32(ADVERB_ATTR_PID),
                 .region = from.u32(ADVERB_ATTR_REGION),
                 .reason = from.text(ADVERB_ATTR_REASON)};
  });
}

} // namespace adverb::module
