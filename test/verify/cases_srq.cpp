// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Family `srq`: receives shared by several QPs.
#include "case.h"

#include "names.h"

#include <memory>

namespace verify {
namespace {

// b's side of two pairs takes its receives from one SRQ.
struct Shared {
  Shared(Case& c, int depth, int max_sge) : c(c), first(c, c.a, c.b, unconnected()) {
    Outcome s = (*first.b.s)(CreateSrq{first.b.pd, depth, max_sge});
    c.result("create_srq", s.err);
    if (s.err)
      throw std::runtime_error("no SRQ");
    srq = s.id;
    PairOptions o = unconnected();
    o.share = &first;
    second = std::make_unique<Pair>(c, c.a, c.b, o);
    attach(first);
    attach(*second);
  }

  static PairOptions unconnected() {
    PairOptions o;
    o.connect = false;
    return o;
  }

  void attach(Pair& p) {
    CreateQp q;
    q.pd = first.b.pd;
    q.send_cq = first.b.scq.id;
    q.recv_cq = first.b.rcq.id;
    q.srq = srq;
    q.cap = {64, 0, 4, 0, 0};
    p.b.qp = (*first.b.s)(q);
    c.result("QP on it", p.b.qp.err);
    p.b.scq = first.b.scq, p.b.rcq = first.b.rcq;
    ModifyQp m;
    m.qp = p.b.qp.id, m.state = IBV_QPS_INIT;
    c.result("to INIT", (*first.b.s)(m).err);
    p.connect();
  }

  Case& c;
  Pair first;
  std::unique_ptr<Pair> second;
  int srq = -1;
};

void two_queues(Case& c) {
  Shared s(c, 32, 4);
  std::vector<RecvWr> r;
  for (uint64_t i = 0; i < 8; ++i)
    r.push_back(recv_wr(s.first.b, 100 + i, i * 4096, 4000));
  r[2].num_sge = 2; // scattered over two entries
  r[2].sge[1] = {r[2].sge[0].addr + 1000, 3000, r[2].sge[0].lkey};
  r[2].sge[0].length = 1000;
  c.recv("recv", s.first.b, r, s.srq);
  std::vector<Range> there;
  // In lock step, so that which message takes which receive is known.
  for (uint64_t i = 0; i < 8; ++i) {
    Pair& p = i % 3 ? s.first : *s.second;
    const int opcode = i == 5  ? IBV_WR_RDMA_WRITE_WITH_IMM
                       : i % 2 ? IBV_WR_SEND_WITH_IMM
                               : IBV_WR_SEND;
    const auto size = static_cast<uint32_t>(i * 450 + 1);
    c.post("post", p.a, {p.wr(opcode, i, i, size, 40000)});
    c.sends("poll", p.a, 1);
    WcList l = c.poll("poll", p.b, s.first.b.rcq, 1);
    if (i == 5)
      there.push_back({40000, size, seed_a, i});
    else if (l.n)
      there.push_back({(l.wc[0].wr_id - 100) * 4096, size, seed_a, i});
  }
  c.bytes("memory", s.first.b, seed_b, there);
}

void limit(Case& c) {
  Shared s(c, 32, 1);
  std::vector<RecvWr> r;
  for (uint64_t i = 0; i < 6; ++i)
    r.push_back(recv_wr(s.first.b, i, i * 64, 64));
  c.recv("recv", s.first.b, r, s.srq);
  c.result("limit 4", (*s.first.b.s)(LimitSrq{s.srq, 4}).err);
  c.log_events("armed", s.first.b);
  for (uint64_t i = 0; i < 4; ++i) {
    c.post("post", s.first.a, {s.first.wr(IBV_WR_SEND, i, 0, 64, 0)});
    c.sends("poll", s.first.a, 1);
    c.recvs("poll", s.first.b, 1);
    c.log_events("after", s.first.b);
  }
}

// An empty SRQ is "receiver not ready", as an empty receive queue is.
void empty(Case& c) {
  Shared s(c, 8, 1);
  c.post("post", s.first.a, {s.first.wr(IBV_WR_SEND, 1, 0, 64, 0)});
  c.post("post", s.second->a, {s.second->wr(IBV_WR_RDMA_WRITE, 2, 0, 64, 8192)});
  c.sends("other QP", s.second->a, 1);
  c.recv("late", s.first.b, {recv_wr(s.first.b, 9, 0, 64)}, s.srq);
  c.sends("late", s.first.a, 1);
  c.recvs("late", s.first.b, 1);
}

// Receives outlive a QP in error: its sibling still gets them.
void error_of_one(Case& c) {
  Shared s(c, 8, 1);
  c.recv("recv", s.first.b, {recv_wr(s.first.b, 1, 0, 64), recv_wr(s.first.b, 2, 64, 64)}, s.srq);
  c.modify("error", s.first.b, IBV_QPS_ERR);
  c.log_events("error", s.first.b);
  c.post("sibling", s.second->a, {s.second->wr(IBV_WR_SEND, 1, 0, 64, 0)});
  c.sends("sibling", s.second->a, 1);
  c.recvs("sibling", s.second->b, 1);
}

void too_small(Case& c) {
  Shared s(c, 8, 1);
  c.recv("recv", s.first.b, {recv_wr(s.first.b, 1, 0, 16), recv_wr(s.first.b, 2, 64, 64)}, s.srq);
  c.post("post", s.first.a, {s.first.wr(IBV_WR_SEND, 1, 0, 64, 0)});
  c.sends("post", s.first.a, 1);
  c.recvs("post", s.first.b, 1);
  c.log_state("post", s.first.b, IBV_QPS_ERR);
  c.log_events("post", s.first.b);
  c.post("sibling", s.second->a, {s.second->wr(IBV_WR_SEND, 1, 0, 64, 0)});
  c.sends("sibling", s.second->a, 1);
  c.recvs("sibling", s.second->b, 1);
}

void overflow(Case& c) {
  Shared s(c, 8, 1);
  PostRecv post;
  post.srq = s.srq;
  post.n = 1;
  PostResult r = {};
  int taken = 0;
  for (uint64_t i = 0; !r.err && i < 64; ++i) {
    post.wr[0] = recv_wr(s.first.b, i, 0, 8);
    r = (*s.first.b.s)(post);
    taken += !r.err;
  }
  c.expect("full", "at least its depth", taken >= 8);
  c.say("full", "then returns %s", errno_name(r.err).c_str());
}

} // namespace

void add_srq_cases(std::vector<Test>& t) {
  t.push_back({"srq.two_queues", two_queues});
  t.push_back({"srq.limit", limit});
  t.push_back({"srq.empty", empty});
  t.push_back({"srq.error_of_one", error_of_one});
  t.push_back({"srq.too_small", too_small});
  t.push_back({"srq.overflow", overflow});
}

} // namespace verify
