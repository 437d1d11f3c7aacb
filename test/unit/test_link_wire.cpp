// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Control messages and the proof of a key, apart from sockets.
#include "catch.h"
#include "link/proof.h"
#include "link/wire.h"

#include <random>
#include <string>

using namespace adverb::link;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string hex(const wire::Mac& digest) {
  std::string out;
  for (const uint8_t b : digest) {
    out += "0123456789abcdef"[b >> 4];
    out += "0123456789abcdef"[b & 15];
  }
  return out;
}

std::string hmac(const std::string& key, const std::string& data) {
  const auto* k = reinterpret_cast<const uint8_t*>(key.data());
  return hex(hmac_sha256({k, key.size()}, bytes_of(data)));
}

} // namespace

TEST_CASE("HMAC-SHA256 gives the codes of RFC 4231") {
  CHECK(hmac(std::string(20, '\x0b'), "Hi There") ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hmac("Jefe", "what do ya want for nothing?") ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hmac(std::string(20, '\xaa'), std::string(50, '\xdd')) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  CHECK(hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("digests are equal in every bit or not at all") {
  const wire::Mac a = hmac_sha256({}, bytes_of("abc"));
  wire::Mac b = a;
  CHECK(equal(a, b));
  for (size_t bit = 0; bit < 256; ++bit) {
    b = a;
    b[bit / 8] ^= static_cast<uint8_t>(1U << (bit % 8));
    CHECK_FALSE(equal(a, b));
  }
}

TEST_CASE("a frame comes out as it went in, and every shorter piece of it is partial") {
  wire::Bind bind{};
  bind.sqpn = 7;
  bind.dqpn = 0xABCDEF;
  bind.handle = 0x1122334455667788;
  const auto frame = wire::frame(bind);
  wire::Frame out{};
  REQUIRE(wire::parse(frame, out) == wire::Parse::complete);
  CHECK(out.type == wire::Type::bind);
  CHECK(out.bytes == frame.size());
  const auto back = wire::get<wire::Bind>(out);
  CHECK(back.dqpn == bind.dqpn);
  CHECK(back.handle == bind.handle);
  for (size_t n = 0; n < frame.size(); ++n)
    CHECK(wire::parse({frame.data(), n}, out) == wire::Parse::partial);
}

TEST_CASE("the bytes of a frame are those of wire version 2") {
  const auto frame = wire::frame(wire::Registration{{}, 0x00123456, 0}, wire::Type::add_qp);
  const unsigned char head[] = {'A', 'D', 'V', 'B', 2, 0, 32, 0, 24, 0, 0, 0};
  REQUIRE(frame.size() == 36);
  CHECK(memcmp(frame.data(), head, sizeof head) == 0);
  CHECK(frame[28] == std::byte{0x56});
  CHECK(frame[29] == std::byte{0x34});
  CHECK(sizeof(wire::Banner) == 8);
  CHECK(sizeof(wire::Hello) == 64);
  CHECK(sizeof(wire::HelloAck) == 96);
  CHECK(sizeof(wire::Bind) == 56);
  CHECK(sizeof(wire::Companion) == 56);
  CHECK(sizeof(wire::Claim) == 16);
  CHECK(sizeof(wire::CompanionAck) == 48);
}

TEST_CASE("wrong magic, version, type and length are told apart and never read past the end") {
  auto frame = wire::frame(wire::Hello{});
  wire::Frame out{};
  SECTION("magic, as soon as it is there") {
    frame[0] = std::byte{'G'};
    CHECK(wire::parse({frame.data(), 4}, out) == wire::Parse::malformed);
  }
  SECTION("version") {
    const auto other = GENERATE(uint8_t{1}, uint8_t{3});
    frame[4] = std::byte{other};
    CHECK(wire::parse(frame, out) == wire::Parse::wrong_version);
    CHECK(out.version_there == other);
  }
  SECTION("type") {
    frame[6] = std::byte{99};
    CHECK(wire::parse(frame, out) == wire::Parse::malformed);
  }
  SECTION("length too small, too large, enormous") {
    for (const uint32_t length : {0U, 55U, 57U, 0xFFFFFFFFU, 0x80000000U}) {
      memcpy(&frame[8], &length, sizeof length);
      CHECK(wire::parse(frame, out) == wire::Parse::malformed);
    }
  }
}

TEST_CASE("no input makes the parser return what is not there") {
  std::mt19937 random(1);
  const auto start = wire::frame(wire::Companion{});
  for (int i = 0; i < 200000; ++i) {
    std::vector<std::byte> in(start.begin(), start.end());
    in.resize(random() % 96);
    for (unsigned flips = random() % 4; flips > 0 && !in.empty(); --flips)
      in[random() % in.size()] = static_cast<std::byte>(random());
    wire::Frame out{};
    if (wire::parse(in, out) == wire::Parse::complete) {
      REQUIRE(out.bytes <= in.size());
      REQUIRE(out.payload.data() == in.data() + sizeof(wire::Header));
      REQUIRE(out.payload.size() <= wire::payload_max);
    }
  }
}
