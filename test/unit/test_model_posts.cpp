// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The ways to post beside the plain one, and that each keeps its promise.
#include "two_programs.h"

#include <cerrno>

using namespace adverb;
using namespace adverb::test;

namespace {

using Numbers = std::vector<uint64_t>;
Numbers numbers(const std::vector<ibv_wc>& all) {
  Numbers out;
  for (const auto& wc : all)
    out.push_back(wc.wr_id);
  return out;
}

int bind(Program& p, ibv_mw& mw, uint64_t id) {
  ibv_mw_bind bind{};
  bind.wr_id = id;
  bind.send_flags = IBV_SEND_SIGNALED;
  return model::bind_mw(*p.verbs.managed(p.qp), &mw, &bind);
}

} // namespace

TEST_CASE("a window is bound by a request among others", "[posts]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  ibv_mw mw{};
  mw.type = IBV_MW_TYPE_1;
  mw.rkey = 0x1FF;
  REQUIRE(b.receive(21, 0, 8) == 0);
  REQUIRE(b.receive(22, 8, 8) == 0);
  REQUIRE(bind(a, mw, 0) == 0);
  CHECK(mw.rkey == 0x100);
  REQUIRE(a.post(IBV_WR_SEND, 1, 100, 8, b, 0, 0) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 2, 200, 8, b, 0, 0) == 0);
  const auto done = a.poll();
  CHECK(numbers(done) == Numbers{0, 1, 2});
  CHECK(done[0].opcode == IBV_WC_BIND_MW);
  CHECK(numbers(b.poll()) == Numbers{21, 22});
  CHECK(memcmp(b.memory.data(), a.memory.data() + 100, 8) == 0);
  CHECK(memcmp(b.memory.data() + 8, a.memory.data() + 200, 8) == 0);
}

TEST_CASE("a binding that waits in the queue has told its key", "[posts]") {
  Two two;
  Program& a = two.a;
  ibv_mw mw{};
  mw.type = IBV_MW_TYPE_1;
  mw.rkey = 0x10;
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1, 0, 64, two.b, 300, two.b.mr->rkey) == 0); // under way
  REQUIRE(bind(a, mw, 2) == 0);
  CHECK(mw.rkey == 0x11);
  REQUIRE(bind(a, mw, 3) == 0);
  CHECK(mw.rkey == 0x12);
  CHECK(two.fabric.bound.empty());
  two.settle();
  CHECK(two.fabric.bound == std::vector<uint32_t>{0x11, 0x12});
  CHECK(mw.rkey == 0x12);
  CHECK(numbers(a.poll()) == Numbers{1, 2, 3});
}
