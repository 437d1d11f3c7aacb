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

// Piece by piece: a word of the address, or the part of it between two ends of what a device reads
// at a time.
std::set<uint64_t> by_the_rule(const Brought& brought, uint64_t from, uint64_t to) {
  std::set<uint64_t> pages;
  bool equal = true;
  for (uint64_t at = from; at < to; ++at) {
    equal = equal && brought.bytes[at] == brought.pattern[at % page_bytes];
    const uint64_t next = at + 1;
    if (next % 4 != 0 && (next - from) % 128 != 0 && next != to)
      continue;
    if (equal)
      pages.insert(base + (at & ~uint64_t{page_bytes - 1}));
    equal = true;
  }
  return pages;
}

// Each packet of the response is read from memory at a time of its own: those of [from, to) that
// `came_late` says show the pattern, of pages that do.
void packets(Brought& brought, uint64_t from, uint64_t to, uint64_t mtu, uint64_t page,
             const std::vector<bool>& came_late) {
  for (uint64_t at = std::max(from, page); at < std::min(to, page + page_bytes); ++at)
    if (came_late[(at - from) / mtu])
      brought.bytes[at] = brought.pattern[at % page_bytes];
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

TEST_CASE("a page that comes or goes between two packets of a response is suspect") {
  std::mt19937_64 random(17);
  for (int i = 0; i < 4000; ++i) {
    Brought one = brought(random);
    const uint64_t mtu = uint64_t{256} << random() % 5;
    const uint64_t from = random() % (span - 2), to = from + 2 + random() % (span - from - 1);
    const uint64_t page = (from + random() % (to - from)) & ~uint64_t{page_bytes - 1};
    std::vector<bool> came_late((to - from) / mtu + 1);
    const uint64_t first = random() % came_late.size();
    for (uint64_t n = first; n < came_late.size(); ++n)
      came_late[n] = true;
    const bool shows = std::max(from + first * mtu, page) < std::min(to, page + page_bytes);
    packets(one, from, to, mtu, page, came_late);
    INFO(from << " to " << to << " by " << mtu << ", page " << page << " away from packet "
              << first);
    REQUIRE(suspects(one, from, to, {1 + random() % 9000}).contains(base + page) == shows);
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
