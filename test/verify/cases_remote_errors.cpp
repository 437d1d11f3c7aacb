// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Families `remote` and `flow`: requests the responder must refuse, and receives that are missing
// or too small. Each looks at the initiator's completions (the bad request, then a flush of what
// was queued behind it), both QP states, both sides' async events and the responder's untouched
// memory.
#include "case.h"

#include "names.h"

namespace verify {
namespace {

using Spoil = std::function<void(Case&, Pair&, SendWr&)>;

const char* const after = "after";

// A responder that refuses a request raises an event on most devices, but not on rxe. That a device
// never does so cannot be waited for: the first refusal finds out with patience, and later ones
// wait long only where an event has to come.
int event_patience_ms = 800;

// What is common to every refusal: look at everything there is to see.
void look_around(Case& c, Pair& p, int receives_of_b, bool refused = true) {
  c.log_state(after, p.a, IBV_QPS_ERR);
  c.log_state(after, p.b, IBV_QPS_ERR);
  c.log_events(after, p.a);
  if (refused)
    event_patience_ms = c.log_events(after, p.b, event_patience_ms) ? 5000
                        : event_patience_ms == 5000                 ? 5000
                                                                    : 40;
  else
    c.log_events(after, p.b);
  if (receives_of_b && c.state(p.b, IBV_QPS_ERR, 0) == IBV_QPS_ERR)
    c.recvs("b's receives", p.b, receives_of_b);
}

void refuse(Case& c, int opcode, PairOptions o, const Spoil& spoil, Api api = Api::classic) {
  o.post = api;
  Pair p(c, c.a, c.b, o);
  SendWr w = p.wr(opcode, 1, 0, opcode >= IBV_WR_ATOMIC_CMP_AND_SWP ? 8 : 64, 4096);
  if (spoil)
    spoil(c, p, w);
  SendWr quiet = p.wr(IBV_WR_RDMA_WRITE, 3, 128, 64, 8192);
  quiet.flags = 0; // an unsignalled request that fails completes all the same
  c.recv("receives", p.b, {recv_wr(p.b, 21, 0, 64), recv_wr(p.b, 22, 64, 64)});
  if (c.post("post", p.a, {w, p.wr(IBV_WR_RDMA_WRITE, 2, 64, 64, 12288), quiet}, api))
    return;
  c.sends("poll", p.a, 3);
  look_around(c, p, 2);
  c.bytes("memory", p.b, seed_b, {});
  // A QP in error takes requests and flushes them.
  c.post("in error", p.a, {p.wr(IBV_WR_RDMA_WRITE, 4, 0, 64, 4096)}, api);
  c.sends("in error", p.a, 1);
}

struct Way {
  const char* name;
  int opcode;
  int right;
};

constexpr Way ways[] = {
    {"write", IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE},
    {"write_imm", IBV_WR_RDMA_WRITE_WITH_IMM, IBV_ACCESS_REMOTE_WRITE},
    {"read", IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ},
    {"fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC},
    {"cmp_swap", IBV_WR_ATOMIC_CMP_AND_SWP, IBV_ACCESS_REMOTE_ATOMIC},
};

MrInfo other_region(Case& c, Pair& p, int pd) {
  RegMr r{};
  r.pd = pd;
  r.addr = p.b.buf.addr;
  r.size = p.b.buf.size;
  r.access = IBV_ACCESS_LOCAL_WRITE | remote_all;
  MrInfo m = (*p.b.s)(r);
  c.result("second region", m.err);
  return m;
}

void wrong_key(Case&, Pair&, SendWr& w) {
  w.rkey ^= 0x55;
}
void foreign_key(Case&, Pair&, SendWr& w) {
  w.rkey = 0x00fedc00;
}

void dead_key(Case& c, Pair& p, SendWr& w) {
  MrInfo m = other_region(c, p, p.b.pd);
  w.rkey = m.rkey;
  c.result("dereg", (*p.b.s)(DeregMr{m.id}).err);
}

void key_of_other_pd(Case& c, Pair& p, SendWr& w) {
  Outcome pd = (*p.b.s)(AllocPd{});
  w.rkey = other_region(c, p, pd.id).rkey;
}

void before_start(Case&, Pair& p, SendWr& w) {
  w.remote_addr = p.b.mr.addr - 8;
}
void over_end(Case&, Pair& p, SendWr& w) {
  w.remote_addr = p.b.mr.addr + p.b.mr.size - (w.sge[0].length == 8 ? 0 : 32);
}
void far_away(Case&, Pair& p, SendWr& w) {
  w.remote_addr = p.b.mr.addr + (uint64_t{1} << 40);
}
void wrapping(Case&, Pair&, SendWr& w) {
  w.remote_addr = ~uint64_t{0} - 31;
}
void at_zero(Case&, Pair&, SendWr& w) {
  w.remote_addr = 0;
}

void refuse_larger_message(Case& c) { // the first packets fit, the last does not
  PairOptions o;
  o.size_a = 1 << 17;
  Pair p(c, c.a, c.b, o);
  c.post("post", p.a, {p.wr(IBV_WR_RDMA_WRITE, 1, 0, 65536, 1000)});
  c.sends("poll", p.a, 1);
  look_around(c, p, 0);
}

// Zero-length requests touch no memory: no key is looked up.
void empty_request(Case& c, int opcode) {
  Pair p(c, c.a, c.b);
  SendWr w = p.wr(opcode, 1, 0, 0, 0);
  w.rkey = 0x00fedc00;
  w.remote_addr = 0;
  w.num_sge = 0;
  c.post("post", p.a, {w});
  c.sends("poll", p.a, 1);
  look_around(c, p, 0, false);
}

void misaligned_atomic(Case& c, Api api) {
  refuse(
      c, IBV_WR_ATOMIC_FETCH_AND_ADD, {}, [](Case&, Pair&, SendWr& w) { w.remote_addr += 4; }, api);
}

void receive_too_small(Case& c, int size, int type = IBV_QPT_RC) {
  PairOptions o;
  o.type = type;
  Pair p(c, c.a, c.b, o);
  c.recv("receives", p.b, {recv_wr(p.b, 21, 0, 32), recv_wr(p.b, 22, 4096, 64)});
  c.post("post", p.a,
         {p.wr(IBV_WR_SEND, 1, 0, static_cast<uint32_t>(size), 0), p.wr(IBV_WR_SEND, 2, 0, 8, 0)});
  c.sends("poll", p.a, 2);
  // On other types a device may drop the first. One of which it is known what comes does not.
  c.recvs("poll", p.b, 2, type == IBV_QPT_RC || c.options.awaited.given() ? hang_ms : 1000);
  look_around(c, p, 0, false);
  // On UC and UD a device may go on, and the second message arrives.
  if (type == IBV_QPT_RC)
    c.bytes("memory past the receive", p.b, seed_b, {});
}

void no_receive(Case& c, int opcode) {
  PairOptions o;
  o.rnr_retry = 1;
  Pair p(c, c.a, c.b, o);
  c.post("post", p.a, {p.wr(opcode, 1, 0, 64, 4096), p.wr(IBV_WR_RDMA_WRITE, 2, 64, 64, 8192)});
  c.sends("poll", p.a, 2);
  look_around(c, p, 0, false);
}

void late_receive(Case& c, int opcode) {
  Pair p(c, c.a, c.b); // rnr_retry 7: for ever
  c.post("post", p.a, {p.wr(opcode, 1, 0, 64, 4096), p.wr(IBV_WR_RDMA_WRITE, 2, 64, 64, 8192)});
  c.recv("late", p.b, {recv_wr(p.b, 21, 4096, 64)});
  c.recvs("poll", p.b, 1);
  c.sends("poll", p.a, 2);
  look_around(c, p, 0, false);
  c.bytes("memory", p.b, seed_b, {{4096, 64, seed_a, 0}, {8192, 64, seed_a, 64}});
}

// The error of one QP leaves its neighbours alone.
void neighbour(Case& c) {
  Pair p(c, c.a, c.b);
  PairOptions o;
  o.share = &p;
  Pair q(c, c.a, c.b, o);
  SendWr bad = p.wr(IBV_WR_RDMA_WRITE, 1, 0, 64, 0);
  bad.rkey ^= 0x55;
  c.post("bad", p.a, {bad});
  c.post("good", q.a, {q.wr(IBV_WR_RDMA_WRITE, 2, 0, 4096, 4096)});
  c.sends("bad", p.a, 1);
  c.sends("good", q.a, 1);
  c.log_state("good", q.a, IBV_QPS_RTS);
  c.bytes("memory", p.b, seed_b, {{4096, 4096, seed_a, 0}});
}

} // namespace

void add_remote_error_cases(std::vector<Test>& t) {
  struct Mistake {
    const char* name;
    void (*spoil)(Case&, Pair&, SendWr&);
  };
  static constexpr Mistake mistakes[] = {
      {"wrong_key", wrong_key},      {"foreign_key", foreign_key},   {"dead_key", dead_key},
      {"other_pd", key_of_other_pd}, {"before_start", before_start}, {"over_end", over_end},
      {"far_away", far_away},        {"wrapping", wrapping},         {"at_zero", at_zero}};
  for (auto& m : mistakes)
    for (auto& w : ways) {
      if (w.opcode == IBV_WR_ATOMIC_CMP_AND_SWP && m.spoil != wrong_key)
        continue; // as fetch_add
      const bool wraps_aligned = w.opcode >= IBV_WR_ATOMIC_CMP_AND_SWP && m.spoil == wrapping;
      if (wraps_aligned)
        continue; // eight aligned bytes cannot wrap
      t.push_back(
          {std::string("remote.") + m.name + "." + w.name,
           [opcode = w.opcode, spoil = m.spoil](Case& c) { refuse(c, opcode, {}, spoil); }});
    }
  for (auto& w : ways) {
    t.push_back({std::string("remote.region_right.") + w.name, [w](Case& c) {
                   PairOptions o;
                   o.mr_b &= ~w.right;
                   refuse(c, w.opcode, o, nullptr);
                 }});
    t.push_back({std::string("remote.qp_right.") + w.name, [w](Case& c) {
                   PairOptions o;
                   o.qp_b &= ~w.right;
                   refuse(c, w.opcode, o, nullptr);
                 }});
  }
  t.push_back({"remote.wrong_key_wr.write",
               [](Case& c) { refuse(c, IBV_WR_RDMA_WRITE, {}, wrong_key, Api::extended); }});
  t.push_back({"remote.wrong_key_wr.read",
               [](Case& c) { refuse(c, IBV_WR_RDMA_READ, {}, wrong_key, Api::extended); }});
  // A device without resources for READs and atomics refuses them.
  PairOptions no_resources;
  no_resources.dest_rd_atomic_b = 0;
  t.push_back({"remote.no_resources.read",
               [no_resources](Case& c) { refuse(c, IBV_WR_RDMA_READ, no_resources, nullptr); }});
  t.push_back({"remote.no_resources.fetch_add", [no_resources](Case& c) {
                 refuse(c, IBV_WR_ATOMIC_FETCH_AND_ADD, no_resources, nullptr);
               }});
  t.push_back({"remote.larger_message", refuse_larger_message});
  t.push_back({"remote.empty.write", [](Case& c) { empty_request(c, IBV_WR_RDMA_WRITE); }});
  t.push_back({"remote.empty.read", [](Case& c) { empty_request(c, IBV_WR_RDMA_READ); }});
  t.push_back({"remote.misaligned_atomic", [](Case& c) { misaligned_atomic(c, Api::classic); }});
  t.push_back(
      {"remote.misaligned_atomic_wr", [](Case& c) { misaligned_atomic(c, Api::extended); }});
  t.push_back({"remote.neighbour", neighbour});
  t.push_back({"flow.receive_too_small", [](Case& c) { receive_too_small(c, 64); }});
  t.push_back({"flow.receive_far_too_small", [](Case& c) { receive_too_small(c, 9000); }});
  t.push_back({"flow.receive_too_small_uc", [](Case& c) { receive_too_small(c, 64, IBV_QPT_UC); }});
  t.push_back({"flow.receive_too_small_ud", [](Case& c) { receive_too_small(c, 64, IBV_QPT_UD); }});
  t.push_back({"flow.no_receive.send", [](Case& c) { no_receive(c, IBV_WR_SEND); }});
  t.push_back(
      {"flow.no_receive.write_imm", [](Case& c) { no_receive(c, IBV_WR_RDMA_WRITE_WITH_IMM); }});
  t.push_back({"flow.late_receive.send", [](Case& c) { late_receive(c, IBV_WR_SEND); }});
  t.push_back({"flow.late_receive.write_imm",
               [](Case& c) { late_receive(c, IBV_WR_RDMA_WRITE_WITH_IMM); }});
}

} // namespace verify
