// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a managed queue pair pays from post to poll: two programs with the whole library between
// their verbs and a provider that is a table of functions (test/unit/two_programs.h). No thread, no
// device, no empty poll. Under callgrind the instructions of each case are dumped under its name.
#include "../unit/two_programs.h"

#include <valgrind/callgrind.h>

using namespace adverb;
using namespace adverb::test;

namespace {

constexpr int rounds = 1000;

struct Case {
  const char* name;
  ibv_wr_opcode opcode;
  size_t requests; // of one post; the last one is signaled
  uint32_t bytes;  // each
  enum class Way { stock, pinned, local_unpinned } way;
};

constexpr auto stock = Case::Way::stock;
constexpr auto pinned = Case::Way::pinned;
constexpr auto local_unpinned = Case::Way::local_unpinned;

// Under the default policy: the regions of both programs have remote rights and are pinned; one
// more of the initiator's has none and is not.
constexpr Case cases[] = {
    {"write_stock", IBV_WR_RDMA_WRITE, 1, 64, stock},
    {"write_pinned", IBV_WR_RDMA_WRITE, 1, 64, pinned},
    {"write_list_stock", IBV_WR_RDMA_WRITE, 8, 64, stock},
    {"write_list_pinned", IBV_WR_RDMA_WRITE, 8, 64, pinned},
    {"send_stock", IBV_WR_SEND, 1, 64, stock},
    {"send_pinned", IBV_WR_SEND, 1, 64, pinned},
    {"write_staged", IBV_WR_RDMA_WRITE, 1, 64, local_unpinned},
    {"write_large_stock", IBV_WR_RDMA_WRITE, 1, 32768, stock},
    {"write_windowed", IBV_WR_RDMA_WRITE, 1, 32768, local_unpinned},
};

struct Requests {
  std::vector<ibv_sge> sge;
  std::vector<ibv_send_wr> wr;
  Requests(const Case& c, const Program& from, uint32_t lkey, const Program& to)
      : sge(c.requests), wr(c.requests) {
    for (size_t i = 0; i < c.requests; ++i) {
      sge[i] = {from.address(i * c.bytes), c.bytes, lkey};
      wr[i].wr_id = i + 1;
      wr[i].next = i + 1 == c.requests ? nullptr : &wr[i + 1];
      wr[i].sg_list = &sge[i];
      wr[i].num_sge = 1;
      wr[i].opcode = c.opcode;
      wr[i].send_flags = i + 1 == c.requests ? static_cast<unsigned>(IBV_SEND_SIGNALED) : 0u;
      wr[i].wr.rdma = {to.address(32768 + i * c.bytes), to.mr->rkey};
    }
  }
};

// What is measured is the initiator's post and its poll.
void measure(const Case& c) {
  Two t({}, "default");
  t.a.bench.world.provider.keep_ops(t.a.context); // as the edge does for a context it patches
  ibv_mr* local =
      t.a.verbs.reg_mr(t.a.pd, t.a.memory.data(), t.a.memory.size(), IBV_ACCESS_LOCAL_WRITE);
  REQUIRE(local != nullptr);
  Requests requests(c, t.a, c.way == local_unpinned ? local->lkey : t.a.mr->lkey, t.b);
  ibv_send_wr* bad = nullptr;
  ibv_wc wc{};
  for (int round = -16; round < rounds; ++round) { // the first ones find things out
    if (c.opcode == IBV_WR_SEND)
      REQUIRE(t.b.receive(1, 49152, c.bytes) == 0);
    model::Qp* const qp = t.a.verbs.managed(t.a.qp);
    model::Cq* const cq = t.a.verbs.managed(t.a.cq);
    if (round >= 0)
      CALLGRIND_TOGGLE_COLLECT;
    const int rc = c.way != stock ? model::post_send(*qp, requests.wr.data(), &bad)
                                  : t.a.context->ops.post_send(t.a.qp, requests.wr.data(), &bad);
    if (round >= 0)
      CALLGRIND_TOGGLE_COLLECT;
    REQUIRE(rc == 0);
    t.settle();
    if (round >= 0)
      CALLGRIND_TOGGLE_COLLECT;
    const int got =
        c.way != stock ? model::poll_cq(*cq, 1, &wc) : t.a.context->ops.poll_cq(t.a.cq, 1, &wc);
    if (round >= 0)
      CALLGRIND_TOGGLE_COLLECT;
    REQUIRE(got == 1);
    REQUIRE(wc.status == IBV_WC_SUCCESS);
    REQUIRE(wc.wr_id == c.requests);
    if (c.opcode == IBV_WR_SEND)
      REQUIRE(t.b.poll(1).size() == 1);
  }
  CALLGRIND_DUMP_STATS_AT(c.name);
  REQUIRE(t.a.verbs.dereg_mr(local) == 0);
}

} // namespace

TEST_CASE("what a managed queue pair pays") {
  CALLGRIND_ZERO_STATS;
  for (const Case& c : cases)
    measure(c);
}
