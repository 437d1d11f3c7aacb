// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "catch.h"
#include "skip.h"

#include "module/client.h"

#include <cstring>
#include <functional>
#include <vector>

#include <linux/genetlink.h>
#include <linux/netlink.h>

using namespace adverb::module;

namespace {

constexpr uint16_t family = 37;

/// A message as the kernel builds it, and as it would not.
struct Message {
  std::vector<char> bytes;

  explicit Message(int command) {
    const nlmsghdr header{
        .nlmsg_len = 0, .nlmsg_type = family, .nlmsg_flags = 0, .nlmsg_seq = 0, .nlmsg_pid = 0};
    const genlmsghdr generic{
        .cmd = static_cast<uint8_t>(command), .version = ADVERB_GENL_VERSION, .reserved = 0};
    append(&header, sizeof header);
    append(&generic, sizeof generic);
    finish();
  }
  void append(const void* data, size_t size) {
    const auto* from = static_cast<const char*>(data);
    bytes.insert(bytes.end(), from, from + size);
  }
  void finish() {
    const auto size = static_cast<uint32_t>(bytes.size());
    memcpy(bytes.data(), &size, sizeof size);
  }
  Message& attribute(int type, const void* data, size_t size) {
    const nlattr header{.nla_len = static_cast<uint16_t>(sizeof header + size),
                        .nla_type = static_cast<uint16_t>(type)};
    append(&header, sizeof header);
    append(data, size);
    bytes.resize((bytes.size() + 3) & ~size_t{3});
    finish();
    return *this;
  }
  Message& u32(int type, uint32_t value) { return attribute(type, &value, sizeof value); }
  Message& u64(int type, uint64_t value) { return attribute(type, &value, sizeof value); }
  Message& text(int type, const char* value) { return attribute(type, value, strlen(value) + 1); }

  /// Sets the length field of the first attribute of that type.
  void set_length(int type, uint16_t length) {
    for (size_t at = sizeof(nlmsghdr) + sizeof(genlmsghdr); at < bytes.size();) {
      nlattr header;
      memcpy(&header, bytes.data() + at, sizeof header);
      if (header.nla_type == type) {
        memcpy(bytes.data() + at, &length, sizeof length);
        return;
      }
      at += (header.nla_len + size_t{3}) & ~size_t{3};
    }
    FAIL("no such attribute");
  }
  Bytes span() const { return std::as_bytes(std::span(bytes)); }
};

Message& add_counts(Message& message, uint64_t first) {
  for (const Counter& counter : kCounters)
    message.u64(counter.attribute, first++);
  return message;
}

/// In the kernel's order, with the padding it may put before 64-bit values.
Message region() {
  Message out(ADVERB_CMD_REGIONS);
  out.u32(ADVERB_ATTR_PID, 1234).u32(ADVERB_ATTR_UID, 1000).u32(ADVERB_ATTR_REGION, 1);
  out.attribute(ADVERB_ATTR_PAD, nullptr, 0).u64(ADVERB_ATTR_START, 0x7f0000001000);
  out.u64(ADVERB_ATTR_LENGTH, 1 << 20).u32(ADVERB_ATTR_EXTENTS, 2).u32(ADVERB_ATTR_ATTACHMENTS, 3);
  out.u64(ADVERB_ATTR_CHARGED_PAGES, 4).u32(ADVERB_ATTR_DESTROYED, 1);
  return add_counts(out, 100);
}

Message event() {
  Message out(ADVERB_CMD_EVENT);
  out.u32(ADVERB_ATTR_PID, 7).u32(ADVERB_ATTR_REGION, 2).text(ADVERB_ATTR_REASON, "no luck");
  return out;
}

struct Case {
  const char* name;
  std::function<void(Message&)> damage;
  const char* said; // part of the reason
};

constexpr size_t headers = sizeof(nlmsghdr) + sizeof(genlmsghdr);

} // namespace

TEST_CASE("a region's message is read field by field", "[module]") {
  const auto parsed = parse_region(region().span(), family);
  REQUIRE(std::holds_alternative<Region>(parsed));
  const Region& out = std::get<Region>(parsed);
  CHECK(out.pid == 1234);
  CHECK(out.uid == 1000);
  CHECK(out.number == 1);
  CHECK(out.start == 0x7f0000001000);
  CHECK(out.length == 1 << 20);
  CHECK(out.extents == 2);
  CHECK(out.attachments == 3);
  CHECK(out.charged_pages == 4);
  CHECK(out.destroyed);
  for (size_t i = 0; i < out.counts.size(); ++i)
    CHECK(out.counts[i] == 100 + i);
}

TEST_CASE("counters, limits and events are read", "[module]") {
  Message statistics(ADVERB_CMD_STATISTICS);
  const auto counts = parse_statistics(add_counts(statistics, 5).span(), family);
  REQUIRE(std::holds_alternative<Counts>(counts));
  CHECK(std::get<Counts>(counts).back() == 5 + kCounters.size() - 1);

  Message message(ADVERB_CMD_LIMITS);
  message.u32(ADVERB_ATTR_MAX_REGIONS, 10).u64(ADVERB_ATTR_MAX_PAGES, uint64_t{1} << 40);
  const auto limits = parse_limits(message.span(), family);
  REQUIRE(std::holds_alternative<Limits>(limits));
  CHECK(std::get<Limits>(limits).regions == 10);
  CHECK(std::get<Limits>(limits).pages == uint64_t{1} << 40);

  const auto told = parse_event(event().span(), family);
  REQUIRE(std::holds_alternative<Event>(told));
  CHECK(std::get<Event>(told).pid == 7);
  CHECK(std::get<Event>(told).region == 2);
  CHECK(std::get<Event>(told).reason == "no luck");
}

TEST_CASE("what a newer module adds is passed over", "[module]") {
  Message message = region();
  message.u64(ADVERB_ATTR_MAX + 1, 1).text(0x3fff, "whatever");
  CHECK(std::holds_alternative<Region>(parse_region(message.span(), family)));
}

TEST_CASE("a malformed message is refused with its reason", "[module]") {
  const Case cases[] = {
      {"nothing", [](Message& m) { m.bytes.clear(); }, "0 bytes are too short for a netlink"},
      {"half a header", [](Message& m) { m.bytes.resize(7); }, "7 bytes are too short"},
      {"no generic header",
       [](Message& m) {
         m.bytes.resize(sizeof(nlmsghdr));
         m.finish();
       },
       "too short for a generic netlink"},
      {"a length beyond the message", [](Message& m) { m.bytes.resize(m.bytes.size() - 4); },
       "bytes says it has"},
      {"a length below the message", [](Message& m) { m.bytes.resize(m.bytes.size() + 4); },
       "bytes says it has"},
      {"another family", [](Message& m) { m.bytes[4] ^= 1; }, "of family 36 instead of 37"},
      {"another command", [](Message& m) { m.bytes[sizeof(nlmsghdr)] = ADVERB_CMD_LIMITS; },
       "of command 3 instead of 1"},
      {"no attributes",
       [](Message& m) {
         m.bytes.resize(headers);
         m.finish();
       },
       "attribute 2 is missing"},
      {"a stray byte at the end",
       [](Message& m) {
         m.bytes.push_back(0);
         m.finish();
       },
       "1 bytes are too short for an attribute"},
      {"an attribute shorter than its header", [](Message& m) { m.set_length(ADVERB_ATTR_UID, 3); },
       "attribute 3 says it has 3 bytes"},
      {"an attribute of no length, which would go on for ever",
       [](Message& m) { m.set_length(ADVERB_ATTR_UID, 0); }, "attribute 3 says it has 0 bytes"},
      {"an attribute beyond the end", [](Message& m) { m.set_length(ADVERB_ATTR_REFUSED, 13); },
       "attribute 16 says it has 13 bytes where 12 are left"},
      {"the longest attribute there can be",
       [](Message& m) { m.set_length(ADVERB_ATTR_PID, 0xffff); }, "says it has 65535 bytes"},
      {"a number cut short", [](Message& m) { m.set_length(ADVERB_ATTR_PID, 7); },
       "attribute 2 has 3 bytes instead of 4"},
      {"a number as wide as two",
       [](Message& m) { (m = Message(ADVERB_CMD_REGIONS)).u64(ADVERB_ATTR_PID, 1234); },
       "attribute 2 has 8 bytes instead of 4"},
      {"an attribute twice", [](Message& m) { m.u32(ADVERB_ATTR_PID, 1); },
       "attribute 2 comes twice"},
  };
  for (const Case& one : cases) {
    INFO(one.name);
    Message message = region();
    one.damage(message);
    const auto parsed = parse_region(message.span(), family);
    REQUIRE(std::holds_alternative<Malformed>(parsed));
    INFO(std::get<Malformed>(parsed).text);
    CHECK(std::get<Malformed>(parsed).text.find(one.said) != std::string::npos);
  }
}

TEST_CASE("each attribute of a region is needed", "[module]") {
  for (int type = ADVERB_ATTR_PID; type <= ADVERB_ATTR_CHARGED_PAGES; ++type) {
    Message message = region();
    // Renamed to one that is passed over.
    for (size_t at = headers; at < message.bytes.size();) {
      nlattr header;
      memcpy(&header, message.bytes.data() + at, sizeof header);
      if (header.nla_type == type) {
        header.nla_type = ADVERB_ATTR_PAD;
        memcpy(message.bytes.data() + at, &header, sizeof header);
      }
      at += (header.nla_len + size_t{3}) & ~size_t{3};
    }
    const auto parsed = parse_region(message.span(), family);
    REQUIRE(std::holds_alternative<Malformed>(parsed));
    CHECK(std::get<Malformed>(parsed).text == "attribute " + std::to_string(type) + " is missing");
  }
}

TEST_CASE("a text without an end is refused", "[module]") {
  Message message(ADVERB_CMD_EVENT);
  message.u32(ADVERB_ATTR_PID, 7)
      .u32(ADVERB_ATTR_REGION, 2)
      .attribute(ADVERB_ATTR_REASON, "abcd", 4);
  CHECK(std::holds_alternative<Malformed>(parse_event(message.span(), family)));
  Message empty(ADVERB_CMD_EVENT);
  empty.u32(ADVERB_ATTR_PID, 7).u32(ADVERB_ATTR_REGION, 2).attribute(ADVERB_ATTR_REASON, "", 0);
  CHECK(std::holds_alternative<Malformed>(parse_event(empty.span(), family)));
}

TEST_CASE("no cut of a message and no length in it reads beyond it", "[module]") {
  // An exact allocation each, for the sanitizers to see; and none of them may be taken as whole.
  const Message whole = region();
  for (size_t size = 0; size < whole.bytes.size(); ++size) {
    const std::vector<char> cut(whole.bytes.begin(),
                                whole.bytes.begin() + static_cast<ptrdiff_t>(size));
    CHECK(std::holds_alternative<Malformed>(parse_region(std::as_bytes(std::span(cut)), family)));
    Message relabelled = whole;
    relabelled.bytes.resize(size);
    relabelled.bytes.shrink_to_fit();
    if (size >= sizeof(uint32_t))
      relabelled.finish();
    CHECK(std::holds_alternative<Malformed>(parse_region(relabelled.span(), family)));
  }
}

TEST_CASE("a module of another version is refused with what to do", "[module]") {
  CHECK_FALSE(misfit(ADVERB_GENL_VERSION));
  for (const unsigned version : {0U, ADVERB_GENL_VERSION + 1U}) {
    const auto failed = misfit(version);
    REQUIRE(failed);
    CHECK(failed->why == Failure::Why::version);
    CHECK(failed->text.find("version " + std::to_string(version)) != std::string::npos);
    CHECK(failed->remedy.find("one release") != std::string::npos);
  }
  constexpr uint32_t ours = ADVERB_MODULE_VERSION;
  CHECK_FALSE(misfit(adverb_version{.module = ours, .minimum_library = ours}));
  CHECK_FALSE(misfit(adverb_version{.module = ours + 1, .minimum_library = ours}));
  const auto old = misfit(adverb_version{.module = ours - 1, .minimum_library = ours - 1});
  REQUIRE(old);
  CHECK(old->remedy.find("module") != std::string::npos);
  const auto fresh = misfit(adverb_version{.module = ours + 1, .minimum_library = ours + 1});
  REQUIRE(fresh);
  CHECK(fresh->remedy.find("newer adverb") != std::string::npos);
}

TEST_CASE("without the module the client says that it is not loaded", "[module]") {
  if (access("/sys/module/adverb", F_OK) == 0) {
    adverb::test::skip("adverb.ko is loaded: test/kernel has this machine's case");
    return;
  }
  const auto opened = Client::open();
  REQUIRE(std::holds_alternative<Failure>(opened));
  CHECK(std::get<Failure>(opened).why == Failure::Why::absent);
}
