// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which pages of what a READ brought may have been away, against the rule said slowly.
#include "catch.h"
#include "ways/landing.h"

#include <algorithm>
#include <random>
#include <set>
#include <vector>

using namespace adverb::ways;

namespace {

constexpr uint64_t base = 0x7f12'3456'7000;
constexpr uint64_t span = 5 * page_bytes;

struct Brought {
  Pattern pattern;
  std::vector<std::byte> bytes; // of the whole span
};

Brought brought(std::mt19937_64& random) {
  Brought made;
  for (auto& byte : made.pattern)
    byte = static_cast<std::byte>(random());
  made.bytes.resize(span);
  for (size_t at = 0; at < span; ++at) // equal to the pattern nowhere
    made.bytes[at] = made.pattern[at % page_bytes] ^ static_cast<std::byte>(1 + random() % 255);
  return made;
}

// Words [from, to) of the span show the pattern.
void away(Brought& brought, size_t from, size_t to) {
  for (size_t at = 4 * from; at < 4 * to; ++at)
    brought.bytes[at] = brought.pattern[at % page_bytes];
}

std::set<uint64_t> suspects(const Brought& brought, uint64_t from, uint64_t to,
                            const std::vector<size_t>& elements) {
  std::set<uint64_t> pages;
  const auto suspect = [&](uint64_t page) { CHECK(pages.insert(page).second); };
  Landing landing(brought.pattern, base + from);
  std::span<const std::byte> rest(brought.bytes.data() + from, to - from);
  for (size_t i = 0; !rest.empty(); ++i) {
    const size_t take = std::min(rest.size(), elements[i % elements.size()]);
    landing.came(rest.first(take), suspect);
    rest = rest.subspan(take);
  }
  landing.end(suspect);
  return pages;
}

// Word by word of the address; of one that lies in [from, to) in part, that part.
std::set<uint64_t> by_the_rule(const Brought& brought, uint64_t from, uint64_t to) {
  std::set<uint64_t> pages;
  for (uint64_t word = from & ~uint64_t{3}; word < to; word += 4) {
    bool equal = true;
    for (uint64_t at = std::max(word, from); at < std::min(word + 4, to); ++at)
      equal = equal && brought.bytes[at] == brought.pattern[at % page_bytes];
    if (equal)
      pages.insert(base + (word & ~uint64_t{page_bytes - 1}));
  }
  return pages;
}

} // namespace

TEST_CASE("a page is suspect if a word of it is the pattern's, however the READ lies over it") {
  std::mt19937_64 random(7);
  const auto below = [&](uint64_t end) { return random() % end; };
  for (int i = 0; i < 4000; ++i) {
    Brought one = brought(random);
    for (uint64_t parts = below(4); parts != 0; --parts) {
      const uint64_t word = below(span / 4);
      away(one, word, std::min(span / 4, word + 1 + (below(2) != 0 ? 0 : below(2000))));
    }
    const uint64_t from = below(span);
    const uint64_t to =
        from + 1 + below(below(3) == 0 ? std::min<uint64_t>(12, span - from) : span - from);
    const std::vector<size_t> elements = {1 + below(64), 1 + below(9000), 1 + below(7)};
    INFO(from << " to " << to);
    REQUIRE(suspects(one, from, to, elements) == by_the_rule(one, from, to));
  }
}

TEST_CASE("of a page that was away as a whole no READ misses it") {
  std::mt19937_64 random(11);
  Brought one = brought(random);
  away(one, page_bytes / 4, 2 * page_bytes / 4);
  for (uint64_t from = page_bytes - 9; from < page_bytes + 9; ++from)
    for (uint64_t to = page_bytes + 1; to < page_bytes + 20; ++to)
      if (from < to) {
        INFO(from << " to " << to);
        CHECK(suspects(one, from, to, {3}) == std::set<uint64_t>{base + page_bytes});
      }
}

TEST_CASE("what is equal to nothing of the pattern's is good") {
  std::mt19937_64 random(13);
  const Brought one = brought(random);
  CHECK(suspects(one, 1, span - 1, {span}).empty());
}
