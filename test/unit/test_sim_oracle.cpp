// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The oracle of the simulation, told of histories that are right, and of the same with one thing
// wrong.
#include "oracle_history.h"

using namespace sim_test;

TEST_CASE("a history that keeps the rules is right") {
  History h;
  const auto one = h.post(Kind::write);
  const auto two = h.post(Kind::write);
  h.complete(one);
  h.complete(two);
  const auto three = h.post(Kind::read);
  h.read(three, 102);
  CHECK(h.end(102).empty());
}

TEST_CASE("each request completes once, in order, and in the end") {
  History h;
  const auto one = h.post(Kind::write);
  const auto two = h.post(Kind::write);
  SECTION("twice") {
    h.complete(one);
    h.complete(one);
    h.complete(two);
    CHECK(says(h.end(102), "a second time"));
  }
  SECTION("the later one first") {
    h.complete(two);
    CHECK(says(h.end(102), "completes before WRITE 1"));
  }
  SECTION("never") {
    h.complete(one);
    CHECK(says(h.end(102), "never completes"));
  }
  SECTION("one that was not to report success") {
    h.complete(one);
    h.complete(two);
    h.next(Kind::write, 1).signaled = false;
    h.oracle.posted(h.operation);
    h.complete(3);
    CHECK(says(h.end(102, 103), "was not signaled"));
  }
}

TEST_CASE("what its owner has taken out of a mailbox does not come again") {
  History h;
  h.post(Kind::write);
  h.oracle.emptied(1, 0, 101);
  SECTION("and has not") {
    h.complete(1);
    CHECK(h.end(0).empty());
  }
  SECTION("and does") {
    h.complete(1);
    CHECK(says(h.end(101), "carried out a second time"));
  }
}

TEST_CASE("a status that nothing gives cause for is wrong") {
  History h;
  const auto one = h.post(Kind::write);
  SECTION("an error of a good request") {
    h.complete(one, Status::remote_access);
    CHECK(says(h.end(), "completes with"));
  }
  SECTION("success of one that must be refused") {
    h.complete(one);
    h.next(Kind::write, 1).wrong = true;
    h.oracle.posted(h.operation);
    h.complete(2);
    CHECK(says(h.end(101), "must refuse"));
  }
  SECTION("success behind one that failed") {
    h.complete(one);
    h.next(Kind::write, 1).wrong = true;
    h.oracle.posted(h.operation);
    h.post(Kind::write);
    h.complete(2, Status::remote_access);
    h.complete(3);
    CHECK(says(h.end(101), "behind one that failed"));
  }
}

TEST_CASE("of two WRITEs that must be refused the later may be so first where order is relaxed") {
  const bool relaxed = GENERATE(false, true);
  const bool both = GENERATE(false, true);
  History h;
  h.oracle.connected(0, 0, 1, 1, relaxed);
  h.next(Kind::write, 0).wrong = true;
  h.oracle.posted(h.operation);
  h.next(Kind::write, 1).wrong = both;
  h.oracle.posted(h.operation);
  h.complete(1, Status::flushed);
  h.complete(2, both ? Status::remote_access : Status::flushed);
  if (relaxed && both)
    CHECK(h.end().empty());
  else
    CHECK(says(h.end(), "must refuse"));
}

TEST_CASE("what stands behind a refused request has no effect") {
  History h;
  h.oracle.receive_posted(1, 50, 8);
  h.next(Kind::write, 1).wrong = true;
  SECTION("a WRITE behind a WRITE") {
    h.oracle.posted(h.operation);
    const auto two = h.post(Kind::write);
    h.complete(1, Status::remote_access);
    h.complete(two, Status::flushed);
    CHECK(says(h.end(102), "behind one that must be refused"));
  }
  SECTION("a message behind a WRITE") {
    h.oracle.posted(h.operation);
    h.post(Kind::send);
    h.arrive(50, 102);
    CHECK(says(h.end(), "behind one that must be refused"));
  }
  SECTION("an atomic behind a WRITE") {
    h.oracle.posted(h.operation);
    const auto two = h.post(Kind::fetch_add);
    h.complete(1, Status::remote_access);
    h.complete(two, Status::flushed);
    CHECK(says(h.end(1), "FETCH_ADD"));
  }
  SECTION("but it may have passed a READ") {
    h.operation.kind = Kind::read;
    h.operation.values.clear();
    h.oracle.posted(h.operation);
    const auto two = h.post(Kind::write);
    h.complete(1, Status::remote_access);
    h.complete(two, Status::flushed);
    CHECK(h.end(102).empty());
  }
  SECTION("nor with a fence") {
    h.operation.kind = Kind::read;
    h.operation.values.clear();
    h.oracle.posted(h.operation);
    const auto two = h.post(Kind::write, 0, true);
    h.complete(1, Status::remote_access);
    h.complete(two, Status::flushed);
    CHECK(says(h.end(102), "behind one that must be refused"));
  }
}

TEST_CASE("nothing passes a queue pair that is known to be in error") {
  History h;
  Operation back; // of the peer, and what takes the connection down
  back.id = 90;
  back.qp = 1;
  back.wrong = true;
  back.target = {0, 0, 1};
  back.values = {190};
  h.oracle.posted(back);
  const auto one = h.post(Kind::write);
  h.oracle.completed({90, 1, Status::remote_access, "a status", 1, 0, false, 0});
  SECTION("what was there at that moment may stay") {
    h.oracle.broken(1, {101, 0});
    h.complete(one, Status::flushed);
    CHECK(h.end(101).empty());
  }
  SECTION("what was posted may have been carried out") {
    h.oracle.broken(1, {101, 0});
    h.complete(one);
    CHECK(h.end(101).empty());
  }
  SECTION("no bytes arrive any more") {
    h.oracle.broken(1, {0, 0});
    h.complete(one, Status::flushed);
    CHECK(says(h.end(101), "known to be in error"));
  }
  SECTION("nothing that is posted from now on succeeds") {
    h.oracle.broken(1, {101, 0});
    h.complete(one);
    h.complete(h.post(Kind::send));
    CHECK(says(h.end(101), "known to be in error"));
  }
}

TEST_CASE("writes of a queue pair take effect in order, and what is complete is there") {
  History h;
  const auto one = h.post(Kind::write);
  const auto two = h.post(Kind::write);
  h.complete(one);
  h.complete(two);
  SECTION("the earlier one stands at the end") {
    CHECK(says(h.end(101), "has overwritten"));
  }
  SECTION("neither stands there") {
    CHECK(says(h.end(0), "has overwritten"));
  }
  SECTION("half of one") {
    CHECK(says(h.end(77), "what nobody wrote"));
  }
  SECTION("the owner still sees nothing") {
    h.oracle.looked(1, 0, 0, never);
    CHECK(says(h.end(102), "has overwritten"));
  }
}

TEST_CASE("a READ may be passed by what follows it, unless that has a fence") {
  const bool fenced = GENERATE(false, true);
  History h;
  const auto one = h.post(Kind::read);
  const auto two = h.post(Kind::write, 0, fenced);
  h.read(one, 102);
  h.complete(two);
  if (fenced)
    CHECK(says(h.end(102), "later WRITE"));
  else
    CHECK(h.end(102).empty());
}

TEST_CASE("a READ finds what its queue pair has written before") {
  History h;
  const auto one = h.post(Kind::write);
  const auto two = h.post(Kind::read);
  h.complete(one);
  h.read(two, 0);
  CHECK(says(h.end(101), "has overwritten"));
}

TEST_CASE("a message is whole, is the one that is due, and comes behind what was written") {
  History h;
  h.oracle.receive_posted(1, 50, 8);
  h.oracle.receive_posted(1, 51, 8);
  const auto one = h.post(Kind::write);
  const auto two = h.post(Kind::send);
  h.complete(one);
  h.complete(two);
  SECTION("right") {
    h.arrive(50, 102);
    h.oracle.looked(1, 0, 101, two);
    CHECK(h.end(101).empty());
  }
  SECTION("other bytes") {
    h.arrive(50, 101);
    CHECK(says(h.end(101), "other bytes"));
  }
  SECTION("another length") {
    h.arrive(50, 102, 16);
    CHECK(says(h.end(101), "byte_len"));
  }
  SECTION("another receive") {
    h.arrive(51, 102);
    CHECK(says(h.end(101), "completes before 50"));
  }
  SECTION("none") {
    CHECK(says(h.end(101), "receives completed"));
  }
  SECTION("twice") {
    h.arrive(50, 102);
    h.arrive(51, 102);
    CHECK(says(h.end(101), "nothing was sent"));
  }
}

TEST_CASE("what was written before a message is there with it, complete or not") {
  History h;
  h.oracle.receive_posted(1, 50, 8);
  const auto one = h.post(Kind::write);
  const auto two = h.post(Kind::send);
  h.arrive(50, 102);
  h.oracle.looked(1, 0, 0, two);
  h.complete(one);
  h.complete(two);
  CHECK(says(h.end(101), "has overwritten"));
}

TEST_CASE("what is mapped no more refuses who follows addresses") {
  History h;
  const auto post = [&](Kind kind, bool follows, uint32_t count = 1) {
    h.next(kind, 0).follows = follows;
    h.operation.target.count = count;
    h.operation.values.resize(kind == Kind::write ? count : 0, 200 + h.id);
    h.oracle.posted(h.operation);
    return h.id;
  };
  SECTION("as it says, and with no effect") {
    h.oracle.memory_goes(1, 0, 1);
    h.complete(post(Kind::write, true), Status::remote_access);
    CHECK(h.end().empty());
  }
  SECTION("success") {
    h.oracle.memory_goes(1, 0, 1);
    h.complete(post(Kind::write, true));
    CHECK(says(h.end(), "must refuse"));
  }
  SECTION("another status") {
    h.oracle.memory_goes(1, 0, 1);
    h.complete(post(Kind::write, true), Status::other);
    CHECK(says(h.end(), "must refuse"));
  }
  SECTION("or its own device, that one for another reason") {
    h.oracle.memory_goes(1, 0, 1);
    h.next(Kind::write, 0).follows = true;
    h.operation.wrong = h.operation.wrong_here = true;
    h.oracle.posted(h.operation);
    SECTION("first") {
      h.complete(h.id, Status::other);
    }
    SECTION("last") {
      h.complete(h.id, Status::remote_access);
    }
    CHECK(h.end().empty());
  }
  SECTION("an effect") {
    h.oracle.memory_goes(1, 0, 1);
    h.complete(post(Kind::write, true), Status::remote_access);
    CHECK(says(h.end(101), "of the refused WRITE 1"));
  }
  SECTION("an effect where a part of it is mapped") {
    h.oracle.memory_goes(1, 1, 1);
    h.complete(post(Kind::write, true, 2), Status::remote_access);
    CHECK(h.end(101).empty());
  }
  SECTION("nothing behind it has one") {
    h.oracle.memory_goes(1, 0, 1);
    const auto one = post(Kind::write, true);
    const auto two = h.post(Kind::write, 1);
    h.complete(one, Status::remote_access);
    h.complete(two, Status::flushed);
    CHECK(says(h.end(0, 102), "behind one that must be refused"));
  }
  SECTION("not one that has the pages") {
    h.oracle.memory_goes(1, 0, 1);
    h.complete(post(Kind::write, false), Status::remote_access);
    CHECK(says(h.end(), "completes with a status"));
  }
  SECTION("nor one that was there before, of which nobody knows") {
    const auto one = post(Kind::write, true);
    h.oracle.memory_goes(1, 0, 1);
    SECTION("refused") {
      h.complete(one, Status::remote_access);
      CHECK(h.end().empty());
    }
    SECTION("well") {
      h.complete(one);
      CHECK(h.end(101).empty());
    }
  }
  SECTION("nor one that comes when it is there again") {
    h.oracle.memory_goes(1, 0, 1);
    const auto one = post(Kind::write, true);
    CHECK_FALSE(h.oracle.memory_returns(1));
    h.complete(one, Status::remote_access);
    CHECK(h.oracle.memory_returns(1));
    const auto two = post(Kind::write, true);
    CHECK_FALSE(h.oracle.operation(two)->wrong);
  }
}

TEST_CASE("memory that goes before peers have given it back may refuse them, or have its pages") {
  History h;
  const bool late = GENERATE(true, false);
  h.oracle.memory_goes(1, 0, 1, late);
  h.next(Kind::write, 0).follows = true;
  h.oracle.posted(h.operation);
  SECTION("well") {
    h.complete(h.id);
    CHECK(h.end(101).empty() == late);
  }
  SECTION("refused") {
    h.complete(h.id, Status::remote_access);
    CHECK(h.end().empty());
  }
  SECTION("it comes back without waiting for that") {
    CHECK(h.oracle.memory_returns(1) == late);
  }
}

TEST_CASE("atomics count each other") {
  History h;
  const auto one = h.post(Kind::fetch_add, 1);
  const auto two = h.post(Kind::fetch_add, 1);
  const auto result = [&](uint64_t which, uint64_t value) {
    h.oracle.brought(which, {value});
    h.oracle.completed({which, 0, Status::success, "a status", 1, 8, false, 0});
  };
  result(one, 0);
  SECTION("right") {
    result(two, 1);
    CHECK(h.end(0, 2).empty());
  }
  SECTION("one is lost") {
    result(two, 0);
    CHECK(says(h.end(0, 1), "FETCH_ADD"));
  }
  SECTION("one is done twice") {
    result(two, 1);
    CHECK(says(h.end(0, 3), "counts 3 of 2"));
  }
}

TEST_CASE("a shared receive completes once, whichever it is") {
  History h;
  h.oracle.shares(1, 7);
  h.oracle.shared_receive_posted(7, 50, 8);
  h.oracle.shared_receive_posted(7, 51, 8);
  const auto one = h.post(Kind::send);
  const auto two = h.post(Kind::send);
  h.arrive(51, 101);
  SECTION("right") {
    h.arrive(50, 102);
    h.complete(one);
    h.complete(two);
    CHECK(h.end(0).empty());
  }
  SECTION("the same once more") {
    h.arrive(51, 102);
    CHECK(says(h.end(0), "none, or not this"));
  }
  SECTION("one is missing") {
    h.complete(one);
    h.complete(two);
    CHECK(says(h.end(0), "2 messages were sent to it, and 1"));
  }
}

TEST_CASE("what was not taken has no effect") {
  History h;
  const auto one = h.post(Kind::write);
  h.oracle.refused(h.post(Kind::write));
  h.complete(one);
  SECTION("right") {
    CHECK(h.end(101).empty());
  }
  SECTION("it has one all the same") {
    CHECK(says(h.end(102), "nobody wrote"));
  }
}

TEST_CASE("all is there when nobody polls and nothing happens") {
  History h;
  h.post(Kind::write);
  const uint64_t found = GENERATE(uint64_t{0}, uint64_t{101});
  h.oracle.rested(0, {{0, 0}, {found, 0}});
  if (found == 101)
    CHECK(h.oracle.findings().empty());
  h.complete(h.id);
  CHECK(says(h.end(101), "has overwritten") == (found == 0));
}

TEST_CASE("a message is there when nobody polls and nothing happens") {
  History h;
  h.oracle.receive_posted(1, 50, 8);
  h.post(Kind::send);
  const bool came = GENERATE(false, true);
  if (came)
    h.arrive(50, 101);
  h.oracle.rested(0, {{0, 0}, {0, 0}});
  REQUIRE(h.oracle.findings().empty() == came);
  if (!came)
    CHECK(says(h.oracle.findings().front(), "has not gone out"));
}
