// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a program's calls see of its completion queue, with adverb's own completions between.
#include "two_programs.h"

using namespace adverb;
using namespace adverb::test;

TEST_CASE("a poll for one looks past completions that are not the program's", "[cq]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  REQUIRE(a.receive(21, 0, 64) == 0);
  REQUIRE(b.receive(22, 0, 64) == 0);
  // Neither reports itself, so the WRITE, which goes another way, waits for a marker.
  REQUIRE(a.post(IBV_WR_SEND, 1, 100, 64, b, 0, 0, 0) == 0);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 2, 200, 64, b, 300, b.mr->rkey, 0) == 0);
  two.settle();
  REQUIRE(b.post(IBV_WR_SEND, 3, 100, 64, a, 0, 0, 0) == 0);
  const auto done = a.poll(1);
  REQUIRE(done.size() == 1);
  CHECK(done[0].wr_id == 21);
}
