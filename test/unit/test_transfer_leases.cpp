// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a process keeps of the leases it has of a peer's memory.
#include "steering/facts.h"
#include "steering/way.h"
#include "transfer/leases.h"

#include <catch2/catch.hpp>

#include <array>
#include <memory>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb::ways {
extern const steering::WayFunctions leased_way; // ways/leased.cpp
extern const steering::WayFunctions grant_way;  // ways/grant.cpp
} // namespace adverb::ways

namespace {

using namespace std::chrono_literals;
using adverb::transfer::Lease;
using adverb::transfer::Leases;

constexpr uint32_t key = 7;
constexpr unsigned both = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

Lease part(uint32_t number, uint64_t start, uint64_t bytes, unsigned access = both) {
  Lease lease;
  lease.number = number;
  lease.key = key;
  lease.rkey = 1000 + number;
  lease.access = access;
  lease.start = start;
  lease.bytes = bytes;
  return lease;
}

// As a queue pair does: whether the bytes have been asked for.
bool asks(Leases& leases, uint64_t address, Leases::Time now, uint64_t length = 8,
          uint32_t under = key) {
  if (!leases.wanted(under, address, length, now))
    return false;
  leases.ask(under, address, length, now);
  return true;
}

TEST_CASE("what is named again within two terms is to be leased, asked for once in each") {
  Leases leases;
  CHECK_FALSE(asks(leases, 0x10000, 0s));
  CHECK_FALSE(asks(leases, 0x20000, 0s)); // a scan touches each once
  CHECK_FALSE(asks(leases, 0x10000, 0s, 8, key + 1));
  CHECK_FALSE(asks(leases, 0x20000, 2001ms)); // too long ago
  CHECK(asks(leases, 0x20010, 3500ms));       // of the same part
  CHECK_FALSE(asks(leases, 0x20000, 3600ms));
  CHECK(asks(leases, 0x20000, 4000ms));
}

TEST_CASE("one that could not be asked for, as there was no credit, is asked for next time") {
  Leases leases;
  CHECK_FALSE(leases.wanted(key, 0x10000, 8, 0s));
  CHECK(leases.wanted(key, 0x10000, 8, 0s));
  CHECK(asks(leases, 0x10000, 0s));
  CHECK_FALSE(leases.wanted(key, 0x10000, 8, 0s));
}

TEST_CASE("a scan touches each part once, however small its requests are") {
  Leases leases;
  for (uint64_t at = 0x10000; at < 0x30000; at += 0x1000)
    CHECK_FALSE(asks(leases, at, 0s, 0x1000));
  CHECK(asks(leases, 0x10000, 0s)); // the next one touches all again
}

// `uses` of a lease of part `number`, which is at that number's place.
void use(Leases& leases, uint32_t number, int uses) {
  for (int i = 0; i < uses; ++i)
    leases.done(*leases.use(key, uint64_t{number} << 16, 8, IBV_ACCESS_REMOTE_READ));
}

std::vector<uint32_t> given_up(Leases& leases) {
  std::vector<uint32_t> numbers;
  leases.take_given_up(numbers);
  return numbers;
}

TEST_CASE("where there is no room, what is used least gives way to what is named more often") {
  Leases leases;
  for (const uint32_t number : {1U, 2U, 3U})
    leases.add(part(number, uint64_t{number} << 16, 0x10000));
  use(leases, 1, 5);
  use(leases, 2, 2);
  use(leases, 3, 9);
  leases.no_room(key, 0x90000, 0s);
  int named = 1;
  while (!leases.wanted(key, 0x90000, 8, 0s))
    ++named;
  // It was asked for when a second request named it, which counts, and a quarter more is wanted.
  CHECK(named == 6);
  const auto ask = leases.ask(key, 0x90000, 8, 0s);
  CHECK(ask.instead_of == 2);
  CHECK(given_up(leases).empty());
  CHECK_FALSE(leases.covers(key, 0x20000, 8, IBV_ACCESS_REMOTE_READ));
  CHECK(leases.covers(key, 0x10000, 8, IBV_ACCESS_REMOTE_READ));
}

TEST_CASE("a scan of what is leased does not make it hot") {
  Leases leases;
  for (const uint32_t number : {1U, 2U})
    leases.add(part(number, uint64_t{number} << 16, 0x10000));
  for (uint64_t at = 0x10000; at < 0x20000; at += 0x1000)
    leases.done(*leases.use(key, at, 0x1000, IBV_ACCESS_REMOTE_READ));
  use(leases, 2, 4);
  leases.no_room(key, 0x90000, 0s);
  while (!leases.wanted(key, 0x90000, 8, 0s)) {
  }
  CHECK(leases.ask(key, 0x90000, 8, 0s).instead_of == 1);
}

TEST_CASE("what found no room is asked for again in place of another, and each term without") {
  Leases leases;
  leases.add(part(1, 0x10000, 0x10000));
  CHECK_FALSE(leases.wanted(key, 0x90000, 8, 0s));
  REQUIRE(leases.wanted(key, 0x90000, 8, 0s));
  CHECK(leases.ask(key, 0x90000, 8, 0s).instead_of == 0);
  CHECK_FALSE(leases.wanted(key, 0x90000, 8, 0s));
  leases.no_room(key, 0x90000, 0s);
  use(leases, 1, 1);
  while (!leases.wanted(key, 0x90000, 8, 0s)) {
  }
  CHECK(leases.unused().empty());
  CHECK(leases.ask(key, 0x90000, 8, 0s).instead_of == 0);
  leases.no_room(key, 0x90000, 0s);
  REQUIRE(leases.wanted(key, 0x90000, 8, 0s));
  CHECK(leases.ask(key, 0x90000, 8, 0s).instead_of == 1);
}

TEST_CASE("who has nothing that could give way asks once a term whether there is room again") {
  Leases leases;
  CHECK_FALSE(leases.wanted(key, 0x90000, 8, 0s));
  REQUIRE(asks(leases, 0x90000, 0s));
  leases.no_room(key, 0x90000, 0s);
  for (int i = 0; i < 10; ++i)
    CHECK_FALSE(leases.wanted(key, 0x90000, 8, 100ms));
  CHECK_FALSE(leases.wanted(key, 0xa0000, 8, 100ms));
  CHECK_FALSE(leases.wanted(key, 0xa0000, 8, 100ms)); // nor for another
  REQUIRE(asks(leases, 0x90000, 1100ms));
  leases.no_room(key, 0x90000, 1100ms);
  CHECK_FALSE(leases.wanted(key, 0xa0000, 8, 1200ms));
}

TEST_CASE("nothing gives way that is used as much as all that wants its place, or is in use") {
  Leases leases;
  leases.add(part(1, 0x10000, 0x10000));
  leases.add(part(2, 0x20000, 0x10000));
  Lease* const under_way = leases.use(key, 0x10000, 8, IBV_ACCESS_REMOTE_READ);
  use(leases, 2, 20);
  leases.no_room(key, 0x90000, 0s);
  for (int i = 0; i < 10; ++i)
    CHECK_FALSE(leases.wanted(key, 0x90000, 8, 0s));
  leases.done(*under_way);
  CHECK(leases.wanted(key, 0x90000, 8, 0s));
  // Twice as many bytes need both, which are used more together.
  for (int i = 0; i < 10; ++i)
    CHECK_FALSE(leases.wanted(key, 0xb0000 + i, 0x20000, 0s));
  for (int i = 0; i < 40; ++i)
    leases.wanted(key, 0xb0000 + (i % 2), 0x20000, 0s);
  const auto ask = leases.ask(key, 0xb0000, 0x20000, 0s);
  CHECK(ask.instead_of == 1);
  CHECK(given_up(leases) == std::vector{2U});
  CHECK(given_up(leases).empty()); // each once
  CHECK_FALSE(leases.any());
}

TEST_CASE("what is cold is found among many that are hot, and after no more looks than it takes") {
  constexpr uint32_t leased = 200;
  Leases leases;
  for (uint32_t number = 1; number <= leased; ++number) {
    leases.add(part(number, uint64_t{number} << 16, 0x10000));
    if (number != 150)
      use(leases, number, 200);
  }
  leases.no_room(key, 0x90000, 0s);
  int named = 1;
  while (named < 100 && !leases.wanted(key, 0x900000, 8, 0s))
    ++named;
  CHECK(named < 100);
  CHECK(leases.ask(key, 0x900000, 8, 0s).instead_of == 150);
}

TEST_CASE("what is carried otherwise, beside what has to be, counts as a use that has ended") {
  Leases leases;
  leases.add(part(1, 0x10000, 0x10000));
  leases.add(part(2, 0x20000, 0x10000));
  CHECK(leases.unused().empty()); // they are new
  CHECK(leases.name(key, 0x10000, 8, IBV_ACCESS_REMOTE_READ));
  CHECK_FALSE(leases.name(key, 0x30000, 8, IBV_ACCESS_REMOTE_READ));
  CHECK(leases.recall(std::array{3U}, [] {}) == 0);
  CHECK(leases.unused() == std::vector{2U});
  CHECK(leases.covers(key, 0x10000, 8, IBV_ACCESS_REMOTE_READ));
}

TEST_CASE("what is short goes along with what the peer's CPU has before it, though it is leased") {
  using namespace adverb::steering;
  namespace ways = adverb::ways;
  Facts facts;
  facts.opcode = IBV_WR_RDMA_READ;
  facts.length = 4096;
  facts.connected = true;
  facts.peer = adverb::steering::Peer::linked;
  facts.key.kind = KeyVerdict::Kind::virtual_key;
  CHECK(ways::leased_way.fits(facts) == Fit::no);
  facts.leased = true;
  CHECK(ways::leased_way.fits(facts) == Fit::yes);
  facts.beside_unload = true;
  CHECK(ways::leased_way.fits(facts) == Fit::no);
  facts.length = 64 << 10; // which takes longer than to change the lane
  CHECK(ways::leased_way.fits(facts) == Fit::yes);
}

TEST_CASE(
    "an atomic goes by a lease, or else by a window of its own, and none does that is not sound") {
  using namespace adverb::steering;
  namespace ways = adverb::ways;
  Facts facts;
  facts.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  facts.length = 8;
  facts.connected = true;
  facts.peer = adverb::steering::Peer::linked;
  facts.key.kind = KeyVerdict::Kind::virtual_key;
  CHECK(ways::grant_way.fits(facts) == Fit::yes);
  CHECK(ways::leased_way.fits(facts) == Fit::no);
  facts.leased = true; // which says nothing of it that is told of by no completion
  CHECK(ways::grant_way.fits(facts) == Fit::yes);
  CHECK(ways::leased_way.fits(facts) == Fit::no);
  facts.signaled = true;
  CHECK(ways::grant_way.fits(facts) == Fit::no);
  CHECK(ways::leased_way.fits(facts) == Fit::yes);
  facts.beside_unload = true; // the CPU does none
  CHECK(ways::leased_way.fits(facts) == Fit::yes);
  facts.remote_address = 4;
  CHECK(ways::leased_way.fits(facts) == Fit::no);
  CHECK(ways::grant_way.fits(facts) == Fit::no);
}

TEST_CASE("what was used in terms gone by counts half for each") {
  Leases leases;
  leases.add(part(1, 0x10000, 0x10000));
  leases.add(part(2, 0x20000, 0x10000));
  use(leases, 1, 40);
  for (int terms = 0; terms < 4; ++terms) {
    CHECK(leases.unused().empty());
    use(leases, 1, 1);
    use(leases, 2, 5);
  }
  leases.no_room(key, 0x90000, 0s);
  leases.ask(key, 0x90000, 8, 10s); // whether there is room again
  leases.no_room(key, 0x90000, 0s);
  for (int i = 0; i < 100 && !leases.wanted(key, 0x90000, 8, 10s); ++i) {
  }
  CHECK(leases.ask(key, 0x90000, 8, 10s).instead_of == 1);
}

TEST_CASE("a short request that lies in two parts is asked for when it is named often") {
  Leases leases;
  int named = 1;
  while (named < 100 && !leases.wanted(key, 0x1fffc, 8, 0s))
    ++named;
  CHECK(named == 16);
  // A long one always does, where the program's memory begins within a part.
  CHECK_FALSE(leases.wanted(key, 0x48000, 0x10000, 0s));
  CHECK(leases.wanted(key, 0x48000, 0x10000, 0s));
}

TEST_CASE("a short lease in the midst of a long one does not hide it") {
  Leases leases;
  leases.add(part(1, 0x100000, 0x100000));
  leases.add(part(2, 0x110000, 0x10000));
  CHECK(leases.covers(key, 0x140000, 8, IBV_ACCESS_REMOTE_READ));
  CHECK(leases.covers(key, 0x11fff8, 16, IBV_ACCESS_REMOTE_READ));
  CHECK_FALSE(leases.covers(key, 0x200000, 8, IBV_ACCESS_REMOTE_READ));
}

TEST_CASE("a request that is too long to be leased is not asked for, and costs its key nothing") {
  Leases leases;
  for (int n = 0; n < 3; ++n)
    CHECK_FALSE(leases.wanted(key, 0x10000, Leases::longest + 1, 0s));
  CHECK_FALSE(leases.wanted(key, 0x10000, Leases::longest, 0s));
  CHECK(leases.wanted(key, 0x10000, 8, 0s));
}

TEST_CASE("a key whose owner leases nothing is not asked for again while it lives") {
  Leases leases;
  leases.refused(key);
  CHECK_FALSE(leases.wanted(key, 0, 8, 0s));
  CHECK_FALSE(leases.wanted(key, 0, 8, 1ms));
  leases.forget(std::array{key});
  CHECK_FALSE(leases.wanted(key, 0, 8, 2ms));
  CHECK(leases.wanted(key, 0, 8, 3ms));
}

TEST_CASE("a lease covers its bytes under its key by its rights, to the last and no further") {
  Leases leases;
  CHECK_FALSE(leases.any());
  leases.add(part(1, 0x1000, 0x1000));
  leases.add(part(2, 0x3000, 0x1000, IBV_ACCESS_REMOTE_READ));
  CHECK(leases.any());
  const auto covers = [&](uint64_t address, uint64_t length, unsigned right) {
    return leases.covers(key, address, length, right);
  };
  CHECK(covers(0x1000, 0x1000, IBV_ACCESS_REMOTE_WRITE));
  CHECK(covers(0x1fff, 1, IBV_ACCESS_REMOTE_READ));
  CHECK_FALSE(covers(0xfff, 2, IBV_ACCESS_REMOTE_READ));
  CHECK_FALSE(covers(0x1fff, 2, IBV_ACCESS_REMOTE_READ));
  CHECK_FALSE(covers(0x2000, 1, IBV_ACCESS_REMOTE_READ));
  CHECK_FALSE(covers(0x1001, UINT64_MAX, IBV_ACCESS_REMOTE_READ));
  CHECK(covers(0x3000, 8, IBV_ACCESS_REMOTE_READ));
  CHECK_FALSE(covers(0x3000, 8, IBV_ACCESS_REMOTE_WRITE));
  CHECK_FALSE(leases.covers(key + 1, 0x1000, 8, IBV_ACCESS_REMOTE_READ));
}

TEST_CASE("what is called back is used by nobody new, and is back with the end of the last use") {
  Leases leases;
  leases.add(part(1, 0x1000, 0x1000));
  leases.add(part(2, 0x2000, 0x1000));
  int back = 0;
  const auto tell = [&] { ++back; };
  Lease* const first = leases.use(key, 0x1000, 8, IBV_ACCESS_REMOTE_READ);
  Lease* const again = leases.use(key, 0x1008, 8, IBV_ACCESS_REMOTE_WRITE);
  REQUIRE(first != nullptr);
  REQUIRE(again == first);
  CHECK(first->rkey == 1001);
  CHECK(leases.recall(std::array{2U, 9U}, tell) == 0);
  CHECK_FALSE(leases.covers(key, 0x2000, 8, IBV_ACCESS_REMOTE_READ));
  CHECK(leases.recall(std::array{1U}, tell) == 2);
  CHECK(leases.use(key, 0x1000, 8, IBV_ACCESS_REMOTE_READ) == nullptr);
  leases.done(*first);
  CHECK(back == 0);
  leases.done(*again);
  CHECK(back == 1);
  CHECK_FALSE(leases.any());
}

TEST_CASE("a view that the owner's device refuses is used by nobody new, and is given back") {
  Leases leases;
  Lease view = part(1, 0x1000, 0x1000, IBV_ACCESS_REMOTE_READ);
  view.pattern = std::make_shared<const adverb::registration::Pattern>();
  leases.add(view);
  Lease* const used = leases.use_view(key, 0x1000, 8, 0s);
  Lease* const again = leases.use_view(key, 0x1100, 8, 0s);
  REQUIRE(used != nullptr);
  REQUIRE(again == used);
  leases.distrust(*used);
  leases.distrust(*again); // both READs were refused
  CHECK_FALSE(leases.any_views());
  CHECK(leases.use_view(key, 0x1000, 8, 0s) == nullptr);
  std::vector<uint32_t> given_up;
  leases.take_given_up(given_up);
  CHECK(given_up == std::vector{1U}); // once
  leases.done(*used);
  leases.done(*again);
  view.number = 2;
  CHECK(leases.add(view));
  CHECK(leases.use_view(key, 0x1000, 8, 0s) != nullptr);
}

TEST_CASE("what no request has used for a term is given back, and nothing that one uses") {
  Leases leases;
  leases.add(part(1, 0x1000, 0x1000));
  leases.add(part(2, 0x2000, 0x1000));
  leases.add(part(3, 0x3000, 0x1000));
  CHECK(leases.unused().empty()); // they have just been asked for
  Lease* const under_way = leases.use(key, 0x1000, 8, IBV_ACCESS_REMOTE_READ);
  leases.done(*leases.use(key, 0x2000, 8, IBV_ACCESS_REMOTE_READ));
  CHECK(leases.unused() == std::vector{3U});
  CHECK(leases.unused() == std::vector{2U});
  leases.done(*under_way);
  CHECK(leases.unused() == std::vector{1U});
}

TEST_CASE("leases end with their key and with the link, and their uses end later") {
  Leases leases;
  leases.add(part(1, 0x1000, 0x1000));
  Lease* const under_way = leases.use(key, 0x1000, 8, IBV_ACCESS_REMOTE_READ);
  leases.forget(std::array{key});
  CHECK_FALSE(leases.any());
  leases.add(part(2, 0x1000, 0x1000));
  Lease* const another = leases.use(key, 0x1000, 8, IBV_ACCESS_REMOTE_READ);
  REQUIRE(another != nullptr);
  CHECK(another->number == 2);
  leases.close();
  CHECK_FALSE(leases.any());
  leases.done(*under_way);
  leases.done(*another);
}

} // namespace
