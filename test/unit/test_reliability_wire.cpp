// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Packets and reports as bytes, and bytes that are none.
#include "reliability/wire.h"

#include <array>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

using namespace adverb::reliability;

namespace {

Feedback some_report(std::mt19937_64& random) {
  Feedback out{random(), random(), random(), random(), random(), random(), random(), {}};
  for (uint64_t i = random() % 4; i != 0; --i) {
    Section section{random(),
                    static_cast<End>(random() % 6),
                    random() % 2 == 0,
                    static_cast<uint32_t>(random()),
                    static_cast<uint32_t>(random()),
                    {}};
    section.packets.resize(random() % 20);
    for (uint64_t& word : section.packets)
      word = random();
    out.sections.push_back(std::move(section));
  }
  return out;
}

bool same(const Feedback& a, const Feedback& b) {
  if (a.highest != b.highest || a.held_for != b.held_for || a.arrived != b.arrived ||
      a.duplicates != b.duplicates || a.starved != b.starved || a.credit != b.credit ||
      a.granted != b.granted || a.sections.size() != b.sections.size())
    return false;
  for (size_t i = 0; i < a.sections.size(); ++i) {
    const Section& x = a.sections[i];
    const Section& y = b.sections[i];
    if (x.message != y.message || x.end != y.end || x.rest_missing != y.rest_missing ||
        x.base != y.base || x.first != y.first || x.packets != y.packets)
      return false;
  }
  return true;
}

} // namespace

TEST_CASE("a report is read as it was written") {
  std::mt19937_64 random(1);
  std::array<std::byte, 2048> bytes{};
  for (int i = 0; i < 1000; ++i) {
    const Feedback report = some_report(random);
    const size_t length = wire::write(report, bytes);
    const auto read = wire::read(std::span(bytes).first(length));
    REQUIRE(read);
    CHECK(same(*read, report));
  }
}

TEST_CASE("sections without room are left out, and the rest stands") {
  std::mt19937_64 random(2);
  for (size_t room = wire::payload_least; room < 600; room += 7) {
    const Feedback report = some_report(random);
    std::vector<std::byte> bytes(room);
    const size_t length = wire::write(report, bytes);
    REQUIRE(length <= room);
    const auto read = wire::read(std::span(bytes).first(length));
    REQUIRE(read);
    CHECK(read->credit == report.credit);
    CHECK(read->sections.size() <= report.sections.size());
  }
}

TEST_CASE("bytes that are no report are none, and those that are hold what they say") {
  std::mt19937_64 random(3);
  std::array<std::byte, 512> bytes{};
  size_t taken = 0;
  for (int i = 0; i < 100'000; ++i) {
    size_t length = wire::write(some_report(random), bytes);
    for (uint64_t changes = random() % 4; changes != 0; --changes)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    length = random() % 3 == 0 ? random() % bytes.size() : length;
    const std::vector<std::byte> exact(bytes.begin(), bytes.begin() + static_cast<long>(length));
    const auto read = wire::read(exact);
    if (!read)
      continue;
    ++taken;
    size_t words = 0;
    for (const Section& section : read->sections)
      words += section.packets.size();
    REQUIRE(64 + 24 * read->sections.size() + 8 * words == length);
  }
  CHECK(taken > 1000);
}

TEST_CASE("a scheme is known by its bytes, and no other bytes are a scheme") {
  size_t valid = 0;
  for (unsigned byte = 0; byte < 256; ++byte)
    for (const unsigned k : {0, 1, 8, 200, 255})
      for (const unsigned m : {0, 1, 8, 55, 255}) {
        const auto scheme = wire::scheme_of(static_cast<uint8_t>(byte), static_cast<uint8_t>(k),
                                            static_cast<uint8_t>(m));
        if (!scheme)
          continue;
        ++valid;
        CHECK(scheme->valid());
        CHECK(wire::scheme_byte(*scheme) == byte);
        CHECK(scheme->k == k);
        CHECK(scheme->m == m);
      }
  CHECK(valid > 50);
}
