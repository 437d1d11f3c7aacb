// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a peer sends is not believed: the parsers of the unload path.
#include "catch.h"
#include "transfer/handler.h"
#include "transfer/messages.h"

#include <random>
#include <vector>

using namespace adverb::transfer;

namespace {

using Wide = unsigned __int128;

template <typename Header> std::vector<std::byte> frame(const Header& header, size_t payload) {
  std::vector<std::byte> bytes(sizeof header + payload);
  memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

RequestHeader write_of(uint64_t start, uint64_t total, uint64_t at, uint32_t length) {
  RequestHeader h{};
  h.kind = static_cast<uint8_t>(Kind::write);
  h.total_address = start;
  h.total = total;
  h.address = at;
  h.length = length;
  return h;
}

const Handlers handlers(handler_list());

Shape shape_of(const RequestHeader& h) {
  const HandlerRow* row = handlers.find(h.kind);
  return row != nullptr ? row->shape : Shape::any;
}

// As the responder takes a request that has its message to itself: well-formed, of a kind it has,
// and of the kind's shape.
std::optional<Parsed<RequestHeader>> take(std::span<const std::byte> bytes) {
  const auto request = next_request(bytes, shape_of);
  return request && bytes.empty() && handlers.find(request->header.kind) != nullptr ? request
                                                                                    : std::nullopt;
}

std::optional<Parsed<ReplyHeader>> take_reply(std::span<const std::byte> bytes) {
  const auto reply = next_reply(bytes);
  return bytes.empty() ? reply : std::nullopt;
}

bool accepted(const RequestHeader& h) {
  const bool carries = h.kind == static_cast<uint8_t>(Kind::write);
  return take(frame(h, carries ? h.length : 0)).has_value();
}

} // namespace

TEST_CASE("a part that leaves its work request is refused, wrap or not") {
  CHECK(accepted(write_of(1000, 100, 1000, 100)));
  CHECK(accepted(write_of(1000, 100, 1099, 1)));
  CHECK_FALSE(accepted(write_of(1000, 100, 999, 1)));
  CHECK_FALSE(accepted(write_of(1000, 100, 1099, 2)));
  CHECK_FALSE(accepted(write_of(1000, 100, 1101, 0)));
  CHECK_FALSE(accepted(write_of(1000, 99, 1000, 100)));
  CHECK_FALSE(accepted(write_of(UINT64_MAX - 10, 8, 3, 4)));
  CHECK_FALSE(accepted(write_of(0, 16, UINT64_MAX - 7, 16)));
  CHECK_FALSE(accepted(write_of(1000, 10, UINT64_MAX, 10)));
}

TEST_CASE("a request is as long as it says, and only WRITEs and SENDs carry bytes") {
  auto h = write_of(1000, 100, 1000, 50);
  h.kind = static_cast<uint8_t>(GENERATE(Kind::write, Kind::send));
  CHECK(take(frame(h, 50)));
  CHECK_FALSE(take(frame(h, 49)));
  CHECK_FALSE(take(frame(h, 51)));
  for (const Kind kind : {Kind::read, Kind::query, Kind::grant, Kind::release}) {
    auto other = h;
    other.kind = static_cast<uint8_t>(kind);
    CHECK(take(frame(other, 0)));
    CHECK_FALSE(take(frame(other, 50)));
  }
  const auto whole = frame(h, 0);
  for (size_t cut = 0; cut < sizeof h; ++cut)
    CHECK_FALSE(take(std::span(whole).first(cut)));
}

TEST_CASE("unknown kinds, statuses, flags and reserved bits are refused") {
  auto h = write_of(1000, 100, 1000, 0);
  REQUIRE(accepted(h));
  for (const int kind : {0, 10, 11, 255}) {
    auto bad = h;
    bad.kind = static_cast<uint8_t>(kind);
    CHECK_FALSE(accepted(bad));
  }
  h.flags = 4;
  CHECK_FALSE(accepted(h));
  h.flags = last_part | with_immediate;
  CHECK(accepted(h));
  h.zero = 1;
  CHECK_FALSE(accepted(h));

  ReplyHeader r{};
  r.kind = static_cast<uint8_t>(Kind::read);
  r.length = 10;
  CHECK(take_reply(frame(r, 10)));
  CHECK_FALSE(take_reply(frame(r, 9)));
  CHECK_FALSE(take_reply(frame(r, 11)));
  r.flags = has_views | short_of_cpu;
  CHECK(take_reply(frame(r, 10)));
  r.flags = short_of_cpu << 1;
  CHECK_FALSE(take_reply(frame(r, 10)));
  r.flags = 0;
  r.status = static_cast<uint8_t>(Status::full) + 1;
  CHECK_FALSE(take_reply(frame(r, 10)));
}

TEST_CASE("no mutation makes the parsers accept what leaves the request or the message") {
  std::mt19937_64 random(20);
  const auto edge = [&]() -> uint64_t {
    static constexpr uint64_t edges[] = {
        0, 1, 7, 8, 4096, 16384, 1ULL << 31, 1ULL << 32, UINT64_MAX, UINT64_MAX - 1, 1ULL << 63};
    return random() % 3 == 0 ? random() : edges[random() % std::size(edges)] + random() % 3 - 1;
  };
  size_t taken = 0;
  for (int round = 0; round < 300000; ++round) {
    const uint64_t start = edge();
    const size_t payload = random() % 64;
    RequestHeader h = write_of(start, random() % 2 == 0 ? edge() : payload + random() % 64,
                               random() % 2 == 0 ? edge() : start + random() % 64,
                               static_cast<uint32_t>(payload));
    h.kind = static_cast<uint8_t>(1 + random() % 7);
    auto bytes = frame(h, h.kind == static_cast<uint8_t>(Kind::write) ? payload : 0);
    for (size_t flips = random() % 4; flips != 0; --flips)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    if (random() % 8 == 0)
      bytes.resize(random() % (bytes.size() + 8));
    if (const auto p = take(bytes)) {
      ++taken;
      const auto& r = p->header;
      REQUIRE(p->payload.size() + sizeof r == bytes.size());
      if (r.kind > static_cast<uint8_t>(Kind::read))
        continue;
      const uint64_t offset = r.address - r.total_address; // the request may wrap
      REQUIRE(Wide{offset} + r.length <= Wide{r.total});
      REQUIRE((r.kind != static_cast<uint8_t>(Kind::write) || p->payload.size() == r.length));
    }
    if (const auto p = take_reply(bytes))
      REQUIRE(p->payload.size() == p->header.length);
  }
  CHECK(taken > 10000); // not everything was refused for some other reason
}

TEST_CASE("a shared message is its requests, one behind the other, and nothing else") {
  const auto small = write_of(1000, 5, 1000, 5);
  auto read = write_of(2000, 500, 2000, 500);
  read.kind = static_cast<uint8_t>(Kind::read);
  auto bytes = frame(small, 5);
  bytes.resize(next_place(bytes.size()));
  const auto second = frame(read, 0);
  bytes.insert(bytes.end(), second.begin(), second.end());
  std::span<const std::byte> rest = bytes;
  const auto a = next_request(rest, shape_of);
  REQUIRE(a);
  CHECK(a->payload.size() == 5);
  const auto b = next_request(rest, shape_of);
  REQUIRE(b);
  CHECK(b->header.total == 500);
  CHECK(rest.empty());
  for (size_t cut = 1; cut < second.size(); ++cut) { // what is left of the second is none
    rest = std::span(bytes).first(bytes.size() - cut);
    CHECK((!next_request(rest, shape_of) || !next_request(rest, shape_of)));
  }
  for (size_t more = 1; more < 8; ++more) { // behind the first, and no second
    rest = std::span(bytes).first(sizeof small + 5 + more);
    CHECK((!next_request(rest, shape_of) || !next_request(rest, shape_of)));
  }
}

TEST_CASE("no mutation of a shared message has the walkers leave it or go in circles") {
  std::mt19937_64 random(21);
  size_t whole = 0;
  for (int round = 0; round < 100'000; ++round) {
    const bool replies = random() % 2 == 0;
    std::vector<std::byte> bytes;
    size_t count = 1 + random() % 6;
    for (size_t i = 0; i < count; ++i) {
      const auto payload = static_cast<uint32_t>(random() % 40);
      RequestHeader h = write_of(1000, payload, 1000, payload);
      h.kind = static_cast<uint8_t>(random() % 2 == 0 ? Kind::write : Kind::read);
      ReplyHeader r{};
      r.kind = h.kind;
      r.length = payload;
      const auto one = replies
                           ? frame(r, payload)
                           : frame(h, h.kind == static_cast<uint8_t>(Kind::write) ? payload : 0);
      bytes.resize(next_place(bytes.size()));
      bytes.insert(bytes.end(), one.begin(), one.end());
    }
    const bool mutated = random() % 4 != 0;
    if (mutated) {
      for (size_t flips = random() % 4; flips != 0; --flips) {
        // Headers more often than payloads, where little is looked at.
        const size_t at = random() % bytes.size();
        bytes[random() % 2 == 0 ? at : at & ~size_t{63}] = static_cast<std::byte>(random());
      }
      if (random() % 4 == 0)
        bytes.resize(random() % (bytes.size() + 16));
    }
    // Of its exact size, for the sanitizers.
    const std::vector<std::byte> message(bytes.begin(), bytes.end());
    std::span<const std::byte> rest = message;
    size_t seen = 0;
    while (!rest.empty()) {
      const auto before = rest;
      std::span<const std::byte> payload;
      if (replies) {
        const auto p = next_reply(rest);
        if (!p)
          break;
        payload = p->payload;
        REQUIRE(payload.size() == p->header.length);
      } else {
        const auto p = next_request(rest, shape_of);
        if (!p)
          break;
        payload = p->payload;
        REQUIRE(fits(*p, shape_of(p->header)));
      }
      ++seen;
      REQUIRE(payload.data() >= before.data());
      REQUIRE(payload.data() + payload.size() <= message.data() + message.size());
      REQUIRE(rest.size() < before.size());
      REQUIRE((rest.empty() || rest.data() == message.data() + (message.size() - rest.size())));
    }
    whole += rest.empty() && seen == count ? 1 : 0;
    REQUIRE((mutated || (rest.empty() && seen == count)));
  }
  CHECK(whole > 25'000);
  CHECK(whole < 90'000);
}
