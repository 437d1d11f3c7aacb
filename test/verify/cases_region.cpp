// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Family `region`: registration: what it refuses, what a region covers, how it changes. Family
// `differs`: the documented differences (design §6), where stock pins pages and adverb follows
// addresses.
#include "case.h"

#include "names.h"

#include <sys/mman.h>

namespace verify {
namespace {

constexpr int rw = IBV_ACCESS_LOCAL_WRITE;

MrInfo reg(End& e, uint64_t addr, uint64_t size, int access, int pd = -1) {
  RegMr r{};
  r.pd = pd < 0 ? e.pd : pd;
  r.addr = addr;
  r.size = size;
  r.access = access;
  return (*e.s)(r);
}

void refused(Case& c) {
  Pair p(c, c.a, c.b);
  End& e = p.a;
  const uint64_t base = e.buf.addr;
  auto attempt = [&](const char* what, uint64_t addr, uint64_t size, int access) {
    MrInfo m = reg(e, addr, size, access);
    c.result(what, m.err);
    if (!m.err)
      c.result(what, (*e.s)(DeregMr{m.id}).err);
  };
  attempt("remote write without local write", base, 4096, IBV_ACCESS_REMOTE_WRITE);
  attempt("remote atomic without local write", base, 4096, IBV_ACCESS_REMOTE_ATOMIC);
  attempt("remote read only", base, 4096, IBV_ACCESS_REMOTE_READ);
  attempt("no right at all", base, 4096, 0);
  attempt("unknown right", base, 4096, rw | 1 << 17);
  attempt("optional right nobody knows", base, 4096, rw | 1 << 29);
  attempt("relaxed ordering", base, 4096, rw | IBV_ACCESS_RELAXED_ORDERING);
  attempt("null", 0, 4096, rw);
  attempt("wrapping", base, ~uint64_t{0} - 4096, rw);
  attempt("end of the address space", ~uint64_t{0} - 4095, 4096, rw);
  attempt("kernel memory", 0xffff888000000000u, 4096, rw);
  (*e.s)(Protect{base + 8192, 4096, -2});
  attempt("hole in the middle", base, 16384, rw);
  attempt("hole at the end", base, 12288, rw);
  attempt("only the hole", base + 8192, 4096, rw);
  attempt("up to the hole", base, 8192, rw);
  (*e.s)(Protect{base + 8192, 4096, -1});
  (*e.s)(Protect{base + 20480, 4096, PROT_READ});
  attempt("read-only mapping, local write", base + 16384, 12288, rw);
  attempt("read-only mapping, remote read", base + 16384, 12288, IBV_ACCESS_REMOTE_READ);
  attempt("read-only mapping, no right", base + 20480, 4096, 0);
  (*e.s)(Protect{base + 24576, 4096, PROT_NONE});
  attempt("inaccessible mapping", base + 24576, 4096, 0);
}

// A mapping may be longer than its file; what lies behind cannot be had.
void past_a_files_end(Case& c) {
  Pair p(c, c.a, c.b);
  const std::pair<const char*, Backing> kinds[] = {{"shared memory", Backing::shared_memory},
                                                   {"memfd", Backing::memfd},
                                                   {"private memfd", Backing::private_memfd},
                                                   {"private file", Backing::private_file}};
  for (const auto& [what, backing] : kinds) {
    BufInfo buf = (*p.b.s)(MapFile{backing, 16384, 8192 + 100});
    c.result(what, buf.err);
    for (int access : {rw, rw | remote_all, 0})
      for (uint64_t size : {uint64_t{12288}, uint64_t{12289}, uint64_t{16384}}) {
        MrInfo m = reg(p.b, buf.addr, size, access);
        c.result(what, m.err);
        if (!m.err)
          c.result(what, (*p.b.s)(DeregMr{m.id}).err);
      }
  }
}

// A region that starts and ends within pages: its very bounds hold, inside and outside.
void odd_bounds(Case& c) {
  Pair p(c, c.a, c.b);
  MrInfo m = reg(p.b, p.b.buf.addr + 5003, 9001, rw | remote_all);
  c.result("reg", m.err);
  SendWr w = p.wr(IBV_WR_RDMA_WRITE, 1, 0, 9001, 5003),
         r = p.wr(IBV_WR_RDMA_READ, 2, 16384, 9001, 5003);
  w.rkey = r.rkey = m.rkey;
  c.post("inside", p.a, {w, r});
  c.sends("inside", p.a, 2);
  c.bytes("inside", p.b, seed_b, {{5003, 9001, seed_a, 0}});
  c.bytes("inside", p.a, seed_a, {{16384, 9001, seed_a, 0}});
  PairOptions o;
  o.share = &p;
  for (int side = 0; side < 2; ++side) {
    Pair q(c, c.a, c.b, o);
    SendWr x = q.wr(IBV_WR_RDMA_WRITE, 3, 100, 16, side ? 5003 + 9001 - 15 : 5002);
    x.rkey = m.rkey;
    c.post("one byte outside", q.a, {x});
    c.sends("one byte outside", q.a, 1);
  }
  c.bytes("outside", p.b, seed_b, {{5003, 9001, seed_a, 0}});
}

void two_regions_of_one_memory(Case& c) {
  Pair p(c, c.a, c.b);
  MrInfo one = reg(p.b, p.b.buf.addr, 16384, rw | remote_all);
  MrInfo two = reg(p.b, p.b.buf.addr + 8192, 16384, rw | IBV_ACCESS_REMOTE_READ);
  c.expect("keys", "differ", one.rkey != two.rkey);
  auto use = [&](const char* step, Pair& q, const MrInfo& m, int opcode) {
    SendWr w = q.wr(opcode, 1, 0, 64, 8192);
    w.rkey = m.rkey;
    c.post(step, q.a, {w});
    c.sends(step, q.a, 1);
  };
  use("write by the first", p, one, IBV_WR_RDMA_WRITE);
  use("read by the second", p, two, IBV_WR_RDMA_READ);
  c.result("dereg the first", (*p.b.s)(DeregMr{one.id}).err);
  use("read by the second", p, two, IBV_WR_RDMA_READ);
  PairOptions o;
  o.share = &p;
  Pair q(c, c.a, c.b, o);
  use("write by the first", p, one, IBV_WR_RDMA_WRITE);
  use("write by the second", q, two, IBV_WR_RDMA_WRITE);
}

void many(Case& c) {
  PairOptions o;
  o.sq = 128;
  o.size_a = o.size_b = 64 * 4096;
  Pair p(c, c.a, c.b, o);
  std::vector<SendWr> w;
  std::vector<Range> there;
  std::vector<MrInfo> regions;
  for (uint64_t i = 0; i < 60; ++i) {
    regions.push_back(reg(p.b, p.b.buf.addr + i * 4096, 4096, rw | remote_all));
    w.push_back(p.wr(IBV_WR_RDMA_WRITE, i, i * 4096, 1000, i * 4096 + i));
    w.back().rkey = regions.back().rkey;
    there.push_back({i * 4096 + i, 1000, seed_a, i * 4096});
  }
  c.post("post", p.a, w);
  c.sends("poll", p.a, 60);
  c.bytes("memory", p.b, seed_b, there);
  int err = 0;
  for (auto& m : regions)
    err |= (*p.b.s)(DeregMr{m.id}).err;
  c.result("dereg", err);
}

// Remote and local requests use the iova the region was given, not its address.
void with_iova(Case& c, uint64_t iova) {
  Pair p(c, c.a, c.b);
  auto move = [&](End& e) {
    RegMr r{};
    r.pd = e.pd;
    r.addr = e.buf.addr;
    r.size = e.buf.size;
    r.access = rw | remote_all;
    r.iova = iova;
    r.with_iova = 1;
    e.mr = (*e.s)(r);
    c.result("reg_mr_iova", e.mr.err);
    return e.mr.err;
  };
  if (move(p.a) | move(p.b))
    return;
  c.recv("recv", p.b, {recv_wr(p.b, 21, 30000, 500)});
  SendWr add = p.wr(IBV_WR_ATOMIC_FETCH_AND_ADD, 4, 50000, 8, 40000);
  add.compare_add = 0;
  c.post("post", p.a,
         {p.wr(IBV_WR_RDMA_WRITE, 1, 0, 9000, 4099), p.wr(IBV_WR_RDMA_READ, 2, 20000, 9000, 4099),
          p.wr(IBV_WR_SEND, 3, 100, 500, 0), add});
  c.sends("poll", p.a, 4);
  c.recvs("poll", p.b, 1);
  c.bytes("memory", p.b, seed_b, {{4099, 9000, seed_a, 0}, {30000, 500, seed_a, 100}});
  c.bytes("memory", p.a, seed_a, {{20000, 9000, seed_a, 0}, {50000, 8, seed_b, 40000}});
  PairOptions o;
  o.share = &p;
  Pair q(c, c.a, c.b, o);
  SendWr w = q.wr(IBV_WR_RDMA_WRITE, 5, 0, 8, 0);
  w.remote_addr = p.b.buf.addr; // the address is not in the region
  c.post("by address", q.a, {w});
  c.sends("by address", q.a, 1);
}

MrInfo rereg(Case& c, const char* step, End& e, int flags, int pd, uint64_t addr, uint64_t size,
             int access) {
  MrInfo m = (*e.s)(ReregMr{e.mr.id, flags, pd, addr, size, access});
  c.result(step, m.err);
  return m;
}

void rereg_access(Case& c) {
  PairOptions o;
  o.mr_b = rw | IBV_ACCESS_REMOTE_READ;
  Pair p(c, c.a, c.b, o);
  MrInfo m = rereg(c, "grant", p.b, IBV_REREG_MR_CHANGE_ACCESS, -1, 0, 0, rw | remote_all);
  if (!m.err) {
    p.b.mr.lkey = m.lkey, p.b.mr.rkey = m.rkey;
    c.post("granted", p.a, {p.wr(IBV_WR_RDMA_WRITE, 1, 0, 64, 4096)});
    c.sends("granted", p.a, 1);
    m = rereg(c, "revoke", p.b, IBV_REREG_MR_CHANGE_ACCESS, -1, 0, 0, rw);
    p.b.mr.lkey = m.lkey, p.b.mr.rkey = m.rkey;
    c.post("revoked", p.a, {p.wr(IBV_WR_RDMA_WRITE, 2, 64, 64, 8192)});
    c.sends("revoked", p.a, 1);
  }
  c.log_state("after", p.b, m.err ? IBV_QPS_RTS : IBV_QPS_ERR);
}

void rereg_pd(Case& c) {
  Pair p(c, c.a, c.b);
  const int pd = (*p.b.s)(AllocPd{}).id;
  MrInfo m = rereg(c, "move", p.b, IBV_REREG_MR_CHANGE_PD, pd, 0, 0, 0);
  p.b.mr.lkey = m.lkey, p.b.mr.rkey = m.rkey;
  c.post("moved away", p.a, {p.wr(IBV_WR_RDMA_WRITE, 1, 0, 64, 4096)});
  c.sends("moved away", p.a, 1);
}

void rereg_translation(Case& c) {
  Pair p(c, c.a, c.b);
  MrInfo m = rereg(c, "move", p.b, IBV_REREG_MR_CHANGE_TRANSLATION, -1, p.b.buf.addr + 16384, 8192,
                   rw | remote_all);
  if (m.err)
    return;
  p.b.mr.lkey = m.lkey, p.b.mr.rkey = m.rkey;
  c.post("inside", p.a, {p.wr(IBV_WR_RDMA_WRITE, 1, 0, 64, 16384)});
  c.sends("inside", p.a, 1);
  c.post("outside", p.a, {p.wr(IBV_WR_RDMA_WRITE, 2, 0, 64, 0)});
  c.sends("outside", p.a, 1);
}

// What is posted already goes on, if the region still allows it.
void rereg_posted(Case& c) {
  Pair p(c, c.a, c.b);
  c.recv("recv", p.b, {recv_wr(p.b, 21, 0, 64), recv_wr(p.b, 22, 20000, 30000)});
  rereg(c, "one right less", p.b, IBV_REREG_MR_CHANGE_ACCESS, -1, 0, 0,
        rw | IBV_ACCESS_REMOTE_READ);
  c.post("post", p.a, {p.wr(IBV_WR_SEND, 1, 100, 64, 0), p.wr(IBV_WR_SEND, 2, 200, 30000, 0)});
  c.sends("poll", p.a, 2);
  c.recvs("poll", p.b, 2);
  c.bytes("memory", p.b, seed_b, {{0, 64, seed_a, 100}, {20000, 30000, seed_a, 200}});
}

// And if it does not, not a byte lands where it was.
void rereg_moved_posted(Case& c, uint32_t size) {
  Pair p(c, c.a, c.b);
  c.recv("recv", p.b, {recv_wr(p.b, 21, 0, size)});
  MrInfo m = rereg(c, "move", p.b, IBV_REREG_MR_CHANGE_TRANSLATION, -1, p.b.buf.addr + 49152, 4096,
                   rw | remote_all);
  if (m.err)
    return;
  p.b.mr.lkey = m.lkey, p.b.mr.rkey = m.rkey;
  c.post("post", p.a, {p.wr(IBV_WR_SEND, 1, 100, size, 0)});
  c.sends("poll", p.a, 1);
  c.recvs("poll", p.b, 1);
  c.bytes("memory", p.b, seed_b, {});
}

// A region is registered before its memory is ever touched.
void untouched_memory(Case& c) {
  PairOptions o;
  o.size_b = 65536;
  Pair p(c, c.a, c.b, o);
  (*p.b.s)(Protect{p.b.buf.addr, 32768, -1}); // gone, then there again: fresh zero pages
  (*p.b.s)(Protect{p.b.buf.addr, 32768, PROT_READ | PROT_WRITE});
  MrInfo m = reg(p.b, p.b.buf.addr, 32768, rw | remote_all);
  c.result("reg", m.err);
  SendWr w = p.wr(IBV_WR_RDMA_WRITE, 1, 0, 5000, 10000),
         r = p.wr(IBV_WR_RDMA_READ, 2, 8192, 64, 20000);
  w.rkey = r.rkey = m.rkey;
  c.post("post", p.a, {w, r});
  c.sends("poll", p.a, 2);
  c.expect("memory", "reads as zero", (*p.a.s)(Peek{p.a.buf.addr + 8192}).value == 0);
  p.b.buf.addr += 10000, p.b.buf.size = 5000;
  c.bytes("memory", p.b, seed_a, {});
}

// What was registered to be written may be write-protected later, and still be sent.
void protected_source(Case& c) {
  constexpr uint32_t size = 120000;
  PairOptions o;
  o.size_a = o.size_b = 131072;
  Pair p(c, c.a, c.b, o);
  c.result("protect", (*p.a.s)(Protect{p.a.buf.addr, p.a.buf.size, PROT_READ}).err);
  c.post("post", p.a, {p.wr(IBV_WR_RDMA_WRITE, 1, 0, size, 0)});
  c.sends("poll", p.a, 1);
  c.post("post small", p.a, {p.wr(IBV_WR_RDMA_WRITE, 2, size, 100, size)});
  c.sends("poll small", p.a, 1);
  p.b.buf.size = size + 100;
  c.bytes("memory", p.b, seed_a, {});
}

// --- documented differences ---------------------------------------------------------------------

void access_after(Case& c, int protection, int opcode) {
  Pair p(c, c.a, c.b);
  c.post("before", p.a, {p.wr(opcode, 1, 0, 64, 4096)});
  c.sends("before", p.a, 1);
  c.result("change", (*p.b.s)(Protect{p.b.buf.addr, p.b.buf.size, protection}).err);
  c.post("after", p.a, {p.wr(opcode, 2, 0, 64, 8192)});
  c.sends("after", p.a, 1);
}

} // namespace

void add_region_cases(std::vector<Test>& t) {
  t.push_back({"region.refused", refused});
  t.push_back({"region.past_a_files_end", past_a_files_end});
  t.push_back({"region.protected_source", protected_source});
  t.push_back({"region.odd_bounds", odd_bounds});
  t.push_back({"region.two_of_one_memory", two_regions_of_one_memory});
  t.push_back({"region.many", many});
  t.push_back({"region.iova", [](Case& c) { with_iova(c, 0x10000000); }});
  t.push_back({"region.iova_zero", [](Case& c) { with_iova(c, 0); }});
  t.push_back({"region.rereg_access", rereg_access});
  t.push_back({"region.rereg_pd", rereg_pd});
  t.push_back({"region.rereg_translation", rereg_translation});
  t.push_back({"region.rereg_posted", rereg_posted});
  t.push_back({"region.rereg_moved_posted", [](Case& c) { rereg_moved_posted(c, 64); }});
  t.push_back({"region.rereg_moved_posted_large", [](Case& c) { rereg_moved_posted(c, 30000); }});
  t.push_back({"region.untouched_memory", untouched_memory});
  t.push_back(
      {"differs.write_after_munmap", [](Case& c) { access_after(c, -1, IBV_WR_RDMA_WRITE); }});
  t.push_back(
      {"differs.read_after_munmap", [](Case& c) { access_after(c, -1, IBV_WR_RDMA_READ); }});
  t.push_back({"differs.write_after_mprotect",
               [](Case& c) { access_after(c, PROT_READ, IBV_WR_RDMA_WRITE); }});
  t.push_back({"differs.read_after_mprotect",
               [](Case& c) { access_after(c, PROT_NONE, IBV_WR_RDMA_READ); }});
}

} // namespace verify
