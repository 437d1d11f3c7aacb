// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The oracle of the simulation, told of histories of services that are not reliable.
#include "oracle_history.h"

using namespace sim_test;

namespace {

struct Lossy : History {
  explicit Lossy(Transport transport) : History(transport) {
    for (uint64_t receive = 11; receive < 14; ++receive)
      oracle.receive_posted(1, receive, 2);
    for (int i = 0; i < 3; ++i)
      complete(post(Kind::send));
  }
};

} // namespace

TEST_CASE("what is sent unreliably may be lost, and completes all the same") {
  const auto transport = GENERATE(Transport::uc, Transport::ud);
  Lossy h(transport);
  h.arrive(11, 103);
  CHECK(h.end().empty());
}

TEST_CASE("what comes unreliably comes once, whole, and was sent") {
  const auto transport = GENERATE(Transport::uc, Transport::ud);
  Lossy h(transport);
  h.arrive(11, 102);
  SECTION("twice") {
    h.arrive(12, 102);
    CHECK(says(h.end(), "a second time"));
  }
  SECTION("shorter") {
    h.arrive(12, 103, 4);
    CHECK(says(h.end(), "byte_len 4"));
  }
  SECTION("what nobody sent") {
    h.arrive(12, 999);
    CHECK(says(h.end(), "nothing was sent"));
  }
}

TEST_CASE("unreliable messages of a connection come in order, and datagrams in any") {
  const auto transport = GENERATE(Transport::uc, Transport::ud);
  Lossy h(transport);
  h.arrive(11, 103);
  h.arrive(12, 101);
  CHECK(h.end().empty() == (transport == Transport::ud));
}

TEST_CASE("nobody hears of an unreliable request's refusal, and it has no effect") {
  History h(Transport::uc);
  h.next(Kind::write, 0).wrong = true;
  h.oracle.posted(h.operation);
  h.complete(1);
  const auto behind = h.post(Kind::write, 1); // goes on
  h.complete(behind);
  SECTION("the later one may be there") {
    CHECK(h.end(0, 102).empty());
  }
  SECTION("or be lost") {
    CHECK(h.end().empty());
  }
  SECTION("the refused one may not") {
    CHECK(says(h.end(101), "the bytes of the refused"));
  }
}

TEST_CASE("memory stays away while an unreliable request of a queue pair that has gone may come") {
  History h(Transport::uc);
  h.oracle.memory_goes(1, 0, 1);
  h.next(Kind::write, 0).follows = true;
  h.oracle.posted(h.operation);
  SECTION("that completed is known to be refused") {
    h.complete(1);
    h.oracle.gone(0, {0, 0});
    CHECK(h.oracle.memory_returns(1));
  }
  SECTION("that did not may be on its way") {
    h.oracle.gone(0, {0, 0});
    CHECK_FALSE(h.oracle.memory_returns(1));
  }
}

TEST_CASE("what a liar denies to have carried out may come to it a second time, if unreliably") {
  const auto transport = GENERATE(Transport::uc, Transport::rc);
  const bool is_liar = GENERATE(true, false);
  History h(transport);
  const auto one = h.post(Kind::write);
  h.oracle.lies(is_liar ? 1 : 0);
  h.oracle.emptied(1, 0, 101);
  h.complete(one);
  const auto finding = h.end(101);
  if (is_liar && transport == Transport::uc)
    CHECK(finding.empty());
  else
    CHECK(says(finding, "carried out a second time"));
}

TEST_CASE("an unreliable request completes without error while its queue pair is well") {
  History h(Transport::uc);
  h.complete(h.post(Kind::write), Status::remote_access);
  CHECK(says(h.end(), "completes with"));
}

TEST_CASE("an immediate that has come has its data with it, and no other") {
  History h(Transport::uc);
  h.oracle.receive_posted(1, 11, 2);
  h.complete(h.post(Kind::write, 1)); // lost
  const auto told = h.post(Kind::write_imm, 0);
  h.complete(told);
  h.oracle.received({11, 1, Status::success, "a status", -1, 8, true, static_cast<uint32_t>(told)},
                    {0, 0});
  h.oracle.looked(1, 1, 0, told);
  SECTION("it is there") {
    h.oracle.looked(1, 0, 102, told);
    CHECK(h.end(102).empty());
  }
  SECTION("it is not") {
    h.oracle.looked(1, 0, 0, told);
    CHECK(says(h.end(102), "has overwritten"));
  }
}
