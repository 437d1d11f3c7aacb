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

// As the responder takes a request: well-formed, of a kind it has, and of the kind's shape.
std::optional<Parsed<RequestHeader>> take(std::span<const std::byte> bytes) {
  const auto parsed = parse_request(bytes);
  const HandlerRow* row = parsed ? handlers.find(parsed->header.kind) : nullptr;
  return row != nullptr && fits(*parsed, row->shape) ? parsed : std::nullopt;
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

TEST_CASE("a request is as long as it says, and only a WRITE carries bytes") {
  const auto h = write_of(1000, 100, 1000, 50);
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
  for (const int kind : {0, 6, 7, 255}) {
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
  CHECK(parse_reply(frame(r, 10)));
  CHECK_FALSE(parse_reply(frame(r, 9)));
  CHECK_FALSE(parse_reply(frame(r, 11)));
  r.status = static_cast<uint8_t>(Status::unsupported) + 1;
  CHECK_FALSE(parse_reply(frame(r, 10)));
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
    h.kind = static_cast<uint8_t>(1 + random() % 5);
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
      REQUIRE(Wide{r.address} >= Wide{r.total_address});
      REQUIRE(Wide{r.address} + r.length <= Wide{r.total_address} + r.total);
      REQUIRE((r.kind != static_cast<uint8_t>(Kind::write) || p->payload.size() == r.length));
    }
    if (const auto p = parse_reply(bytes))
      REQUIRE(p->payload.size() == p->header.length);
  }
  CHECK(taken > 10000); // not everything was refused for some other reason
}
