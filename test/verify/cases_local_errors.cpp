// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Family `local`: scatter/gather entries that name memory the caller may not use so.
#include "case.h"

#include "names.h"

namespace verify {
namespace {

// The entry to spoil, on the side whose request or receive carries it.
using Spoil = std::function<void(Case&, End&, ibv_sge&)>;

MrInfo region(Case& c, End& e, int pd, int access) {
  RegMr r{};
  r.pd = pd;
  r.addr = e.buf.addr;
  r.size = e.buf.size;
  r.access = access;
  MrInfo m = (*e.s)(r);
  c.result("second region", m.err);
  return m;
}

void wrong_key(Case&, End&, ibv_sge& s) {
  s.lkey ^= 0x55;
}
void foreign_key(Case&, End&, ibv_sge& s) {
  s.lkey = 0x00fedc00;
}
void before_start(Case&, End& e, ibv_sge& s) {
  s.addr = e.mr.addr - 8;
}
void over_end(Case&, End& e, ibv_sge& s) {
  s.addr = e.mr.addr + e.mr.size - 4;
}
void other_pd(Case& c, End& e, ibv_sge& s) {
  s.lkey = region(c, e, (*e.s)(AllocPd{}).id, IBV_ACCESS_LOCAL_WRITE).lkey;
}
void read_only(Case& c, End& e, ibv_sge& s) {
  s.lkey = region(c, e, e.pd, 0).lkey;
}
void dead_key(Case& c, End& e, ibv_sge& s) {
  MrInfo m = region(c, e, e.pd, IBV_ACCESS_LOCAL_WRITE);
  s.lkey = m.lkey;
  c.result("dereg", (*e.s)(DeregMr{m.id}).err);
}

void bad_request(Case& c, int opcode, const Spoil& spoil, uint32_t size) {
  Pair p(c, c.a, c.b);
  SendWr w = p.wr(opcode, 1, 0, opcode >= IBV_WR_ATOMIC_CMP_AND_SWP ? 8 : size, 4096);
  spoil(c, p.a, w.sge[0]);
  c.recv("receives", p.b, {recv_wr(p.b, 21, 0, 4096)});
  if (c.post("post", p.a, {w, p.wr(IBV_WR_RDMA_WRITE, 2, 64, 64, 12288)}))
    return;
  c.sends("poll", p.a, 2);
  c.log_state("after", p.a, IBV_QPS_ERR);
  c.log_state("after", p.b, IBV_QPS_RTS);
  c.log_events("after", p.a);
  c.log_events("after", p.b);
  c.bytes("memory", p.a, seed_a, {});
  // Behind a request that fails when its answer comes, later ones may be executed though flushed.
  if (opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_SEND)
    c.bytes("memory", p.b, seed_b, {});
}

// b's receive is the bad one: both sides learn of it.
void bad_receive(Case& c, const Spoil& spoil) {
  Pair p(c, c.a, c.b);
  RecvWr r = recv_wr(p.b, 21, 4096, 64);
  spoil(c, p.b, r.sge[0]);
  if (c.recv("receives", p.b, {r, recv_wr(p.b, 22, 8192, 64)}))
    return;
  c.post("post", p.a, {p.wr(IBV_WR_SEND, 1, 0, 64, 0), p.wr(IBV_WR_SEND, 2, 0, 8, 0)});
  c.sends("poll", p.a, 2);
  c.recvs("poll", p.b, 2);
  c.log_state("after", p.a, IBV_QPS_ERR);
  c.log_state("after", p.b, IBV_QPS_ERR);
  c.log_events("after", p.a);
  c.log_events("after", p.b);
  c.bytes("memory", p.b, seed_b, {});
}

// The bad entry is the second of three: what precedes it must not count as success.
void bad_among_good(Case& c) {
  Pair p(c, c.a, c.b);
  SendWr w = p.wr(IBV_WR_RDMA_WRITE, 1, 0, 64, 4096);
  w.num_sge = 3;
  w.sge[1] = w.sge[2] = w.sge[0];
  w.sge[1].lkey ^= 0x55;
  c.post("post", p.a, {p.wr(IBV_WR_RDMA_WRITE, 0, 0, 64, 0), w});
  c.sends("poll", p.a, 2);
  c.log_state("after", p.a, IBV_QPS_ERR);
}

// Inline data need no region at all.
void inline_without_region(Case& c) {
  PairOptions o;
  o.inline_data = 64;
  Pair p(c, c.a, c.b, o);
  SendWr w = p.wr(IBV_WR_RDMA_WRITE, 1, 0, 48, 4096);
  w.flags |= IBV_SEND_INLINE;
  w.sge[0].lkey = 0x00fedc00;
  c.post("post", p.a, {w});
  c.sends("poll", p.a, 1);
  c.bytes("memory", p.b, seed_b, {{4096, 48, seed_a, 0}});
}

// An entry of no bytes names no memory.
void empty_entry(Case& c) {
  Pair p(c, c.a, c.b);
  SendWr w = p.wr(IBV_WR_RDMA_WRITE, 1, 0, 64, 4096);
  w.num_sge = 2;
  w.sge[1] = {0, 0, 0x00fedc00};
  c.post("post", p.a, {w});
  c.sends("poll", p.a, 1);
  c.log_state("after", p.a, IBV_QPS_RTS);
}

// A source need not be writable.
void read_only_source(Case& c) {
  Pair p(c, c.a, c.b);
  const uint32_t key = region(c, p.a, p.a.pd, 0).lkey;
  SendWr w = p.wr(IBV_WR_RDMA_WRITE, 1, 0, 6000, 4096), s = p.wr(IBV_WR_SEND, 2, 0, 100, 0);
  w.sge[0].lkey = s.sge[0].lkey = key;
  c.recv("receives", p.b, {recv_wr(p.b, 21, 0, 100)});
  c.post("post", p.a, {w, s});
  c.sends("poll", p.a, 2);
  c.recvs("poll", p.b, 1);
  c.bytes("memory", p.b, seed_b, {{0, 100, seed_a, 0}, {4096, 6000, seed_a, 0}});
}

struct Mistake {
  const char* name;
  void (*spoil)(Case&, End&, ibv_sge&);
};

} // namespace

void add_local_error_cases(std::vector<Test>& t) {
  static constexpr Mistake mistakes[] = {
      {"wrong_key", wrong_key}, {"foreign_key", foreign_key}, {"before_start", before_start},
      {"over_end", over_end},   {"other_pd", other_pd},       {"dead_key", dead_key}};
  struct Way {
    const char* name;
    int opcode;
  };
  static constexpr Way all[] = {{"write", IBV_WR_RDMA_WRITE},
                                {"send", IBV_WR_SEND},
                                {"read", IBV_WR_RDMA_READ},
                                {"fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD}};
  auto name = [](const char* mistake, const char* way) {
    return std::string("local.") + mistake + "." + way;
  };
  for (auto& m : mistakes) {
    for (auto& w : all)
      t.push_back(
          {name(m.name, w.name), [w, m](Case& c) { bad_request(c, w.opcode, m.spoil, 64); }});
    t.push_back({name(m.name, "recv"), [m](Case& c) { bad_receive(c, m.spoil); }});
  }
  t.push_back({"local.wrong_key.large_write",
               [](Case& c) { bad_request(c, IBV_WR_RDMA_WRITE, wrong_key, 40000); }});
  t.push_back(
      {"local.read_only.read", [](Case& c) { bad_request(c, IBV_WR_RDMA_READ, read_only, 64); }});
  t.push_back({"local.read_only.fetch_add",
               [](Case& c) { bad_request(c, IBV_WR_ATOMIC_FETCH_AND_ADD, read_only, 8); }});
  t.push_back({"local.read_only.recv", [](Case& c) { bad_receive(c, read_only); }});
  t.push_back({"local.read_only_source", read_only_source});
  t.push_back({"local.bad_among_good", bad_among_good});
  t.push_back({"local.inline_without_region", inline_without_region});
  t.push_back({"local.empty_entry", empty_entry});
}

} // namespace verify
