// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Family `order`: what RC promises about the order in which things happen at the responder and
// become visible there, and about the order of completions.
#include "case.h"

#include "pattern.h"

namespace verify {
namespace {

SendWr quiet(SendWr w) {
  w.flags &= ~static_cast<uint32_t>(IBV_SEND_SIGNALED);
  return w;
}

SendWr fenced(SendWr w) {
  w.flags |= IBV_SEND_FENCE;
  return w;
}

SendWr atomic(const Pair& p, int opcode, uint64_t id, uint64_t at_a, uint64_t at_b, uint64_t x,
              uint64_t swap = 0) {
  SendWr w = p.wr(opcode, id, at_a, 8, at_b);
  w.compare_add = x;
  w.swap = swap;
  return w;
}

uint64_t peek(const End& e, uint64_t at) {
  return (*e.s)(Peek{e.buf.addr + at}).value;
}
void poke(const End& e, uint64_t at, uint64_t v) {
  (*e.s)(Poke{e.buf.addr + at, v});
}

// A poller that sees the last byte must see the whole message.
void last_byte(Case& c) {
  PairOptions o;
  o.size_a = o.size_b = 1 << 20;
  Pair p(c, c.a, c.b, o);
  int step = 0;
  for (uint32_t size : {64u, 4096u, 5000u, 65536u, 300000u, 1u << 20}) {
    const uint64_t last = size - 1;
    const uint8_t awaited = pattern(seed_a, last);
    (*p.b.s)(Fill{p.b.buf.addr, size, 0x77, 0});
    uint64_t word = (last / 8) * 8, old = peek(p.b, word);
    poke(p.b, word, old ^ (static_cast<uint64_t>(0xff) << (last % 8 * 8))); // differs for sure,
    if (((peek(p.b, word) >> (last % 8 * 8)) & 0xff) == awaited)            // or put it back
      poke(p.b, word, old);
    AwaitByte await{p.b.buf.addr, p.b.buf.addr + last, size, seed_a, 0, awaited, 20000};
    if (!p.b.s->local())
      p.b.s->start(await);
    std::string name = "size=" + std::to_string(size) + " #" + std::to_string(step++);
    c.post(name.c_str(), p.a, {p.wr(IBV_WR_RDMA_WRITE, 1, 0, size, 0)});
    Verdict v = p.b.s->local() ? (*p.b.s)(await) : p.b.s->receive<AwaitByte>();
    c.expect(name.c_str(), "message behind its last byte", v.bad == 0);
    c.sends(name.c_str(), p.a, 1);
  }
}

// 768 WRITEs of an aligned 8-byte value under the eyes of a spinning reader.
struct Spun {
  bool written;
  bool last_is_there;
  SpinResult seen;
};

Spun write_words(Case& c) {
  PairOptions o;
  Pair p(c, c.a, c.b, o);
  constexpr uint64_t target = 256;
  auto value = [](uint32_t i) { return static_cast<uint64_t>(~i) << 32 | i; };
  poke(p.b, target, value(0));
  (*p.b.s)(StartSpin{p.b.buf.addr + target});
  uint32_t counter = 0;
  bool good = true;
  for (int round = 0; round < 24; ++round) {
    PostSend post;
    post.qp = p.a.qp.id;
    for (uint64_t i = 0; i < 32; ++i) {
      poke(p.a, i * 8, value(++counter));
      SendWr w = p.wr(IBV_WR_RDMA_WRITE, counter, i * 8, 8, target);
      post.wr[post.n++] = i == 31 ? w : quiet(w);
    }
    good = good && (*p.a.s)(post).err == 0;
    Poll poll;
    poll.cq = p.a.scq.id;
    poll.want = 1;
    WcList l = (*p.a.s)(poll);
    good = good && l.n == 1 && l.wc[0].status == IBV_WC_SUCCESS && l.wc[0].wr_id == counter;
  }
  SpinResult r = (*p.b.s)(StopSpin{});
  return {good, peek(p.b, target) == value(counter), r};
}

// A spinning reader of an aligned 8-byte value sees only values that were written, in order.
// The loopback device stores by process_vm_writev. Where the CPU has FSRM (fast short rep mov) the
// kernel copies even eight bytes by one `rep movsb`, which an interrupt may cut between two bytes;
// the reader then sees the half that is there until the writer runs again. That takes an interrupt
// within nanoseconds, so one of a few tries goes without; a device or a responder that stores in
// pieces is seen in each.
void aligned_words(Case& c) {
  Spun spun = write_words(c);
  for (int again = 0; again < 4 && spun.seen.torn != 0; ++again)
    spun = write_words(c);
  c.expect("writes", "768 words written", spun.written);
  c.expect("reader", "no torn value", spun.seen.torn == 0);
  c.expect("reader", "no value older than one seen before", spun.seen.backward == 0);
  c.expect("reader", "last value", spun.last_is_there);
}

// Whoever is told by a receive completion sees the WRITE posted before it.
void write_then(Case& c, int teller, bool with_data) {
  PairOptions o;
  o.size_a = o.size_b = 1 << 18;
  Pair p(c, c.a, c.b, o);
  const uint32_t told = with_data ? 100 : 0;
  for (uint64_t round = 0; round < 4; ++round) {
    const uint32_t size = 65536 + static_cast<uint32_t>(round);
    (*p.b.s)(Fill{p.b.buf.addr, p.b.buf.size, seed_b, 0});
    std::string name = "round " + std::to_string(round);
    const bool send = teller == IBV_WR_SEND || teller == IBV_WR_SEND_WITH_IMM;
    c.recv(name.c_str(), p.b, {recv_wr(p.b, round, 200000, send ? told : 0)});
    c.post(name.c_str(), p.a,
           {quiet(p.wr(IBV_WR_RDMA_WRITE, 10, round, size, 3)),
            p.wr(teller, 11, 131072, told, 200000)});
    c.recvs(name.c_str(), p.b, 1);
    c.bytes(name.c_str(), p.b, seed_b, {{3, size, seed_a, round}, {200000, told, seed_a, 131072}});
    c.sends(name.c_str(), p.a, 1);
  }
}

void read_back(Case& c) {
  PairOptions o;
  o.size_a = o.size_b = 1 << 18;
  Pair p(c, c.a, c.b, o);
  c.post("post", p.a,
         {p.wr(IBV_WR_RDMA_WRITE, 1, 0, 40000, 5), p.wr(IBV_WR_RDMA_READ, 2, 100000, 40000, 5)});
  c.sends("poll", p.a, 2);
  c.bytes("memory", p.a, seed_a, {{100000, 40000, seed_a, 0}});
  c.bytes("memory", p.b, seed_b, {{5, 40000, seed_a, 0}});
}

// The READ comes first, so it must bring what the WRITE behind it is about to replace.
void read_then_write(Case& c) {
  PairOptions o;
  o.size_a = o.size_b = 1 << 18;
  Pair p(c, c.a, c.b, o);
  for (uint32_t size : {8u, 4096u, 60000u}) {
    std::string name = "size=" + std::to_string(size);
    c.post(name.c_str(), p.a,
           {p.wr(IBV_WR_RDMA_READ, 1, 100000, size, 64), p.wr(IBV_WR_RDMA_WRITE, 2, 0, size, 64)});
    c.sends(name.c_str(), p.a, 2);
    c.bytes(name.c_str(), p.a, seed_a, {{100000, size, seed_b, 64}});
    c.bytes(name.c_str(), p.b, seed_b, {{64, size, seed_a, 0}});
    (*p.a.s)(Fill{p.a.buf.addr, p.a.buf.size, seed_a, 0});
    (*p.b.s)(Fill{p.b.buf.addr, p.b.buf.size, seed_b, 0});
  }
}

void atomics_between_writes(Case& c) {
  Pair p(c, c.a, c.b);
  poke(p.a, 0, 5);
  poke(p.a, 8, 100);
  c.post("post", p.a,
         {p.wr(IBV_WR_RDMA_WRITE, 1, 0, 8, 64),
          atomic(p, IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 1024, 64, 3),
          atomic(p, IBV_WR_ATOMIC_CMP_AND_SWP, 3, 1032, 64, 8, 21),
          p.wr(IBV_WR_RDMA_READ, 4, 1040, 8, 64), p.wr(IBV_WR_RDMA_WRITE, 5, 8, 8, 64),
          atomic(p, IBV_WR_ATOMIC_CMP_AND_SWP, 6, 1048, 64, 99, 1), // does not match
          atomic(p, IBV_WR_ATOMIC_FETCH_AND_ADD, 7, 1056, 64, ~uint64_t{0})});
  c.sends("poll", p.a, 7);
  c.expect("values", "add saw the write", peek(p.a, 1024) == 5);
  c.expect("values", "swap saw the add", peek(p.a, 1032) == 8);
  c.expect("values", "read saw the swap", peek(p.a, 1040) == 21);
  c.expect("values", "failed swap saw the second write", peek(p.a, 1048) == 100);
  c.expect("values", "second add saw it unchanged", peek(p.a, 1056) == 100);
  c.expect("values", "target", peek(p.b, 64) == 99);
}

// Two initiators' worth of increments on one word: none is lost.
void atomic_sums(Case& c, Api api) {
  PairOptions o;
  o.post = api;
  Pair p(c, c.a, c.b, o);
  o.share = &p;
  Pair q(c, c.a, c.b, o);
  poke(p.b, 0, 1000);
  for (int round = 0; round < 4; ++round) {
    std::vector<SendWr> one, two;
    for (uint64_t i = 0; i < 8; ++i) {
      one.push_back(atomic(p, IBV_WR_ATOMIC_FETCH_AND_ADD, i, 64 + i * 8, 0, 1));
      two.push_back(atomic(q, IBV_WR_ATOMIC_FETCH_AND_ADD, i, 256 + i * 8, 0, 100));
    }
    c.post("first QP", p.a, one, api);
    c.post("second QP", q.a, two, api);
    c.sends("first QP", p.a, 8);
    c.sends("second QP", q.a, 8);
  }
  c.expect("sum", "every increment counted", peek(p.b, 0) == 1000 + 32 * 101);
}

// A fenced request waits for earlier READs: it may use their result.
void fence(Case& c) {
  PairOptions o;
  o.size_a = o.size_b = 1 << 18;
  Pair p(c, c.a, c.b, o);
  c.recv("recv", p.b, {recv_wr(p.b, 9, 200000, 4096)});
  c.post("post", p.a,
         {p.wr(IBV_WR_RDMA_READ, 1, 0, 30000, 0),
          fenced(p.wr(IBV_WR_RDMA_WRITE, 2, 0, 30000, 100000)),
          fenced(p.wr(IBV_WR_SEND, 3, 0, 4096, 0))});
  c.sends("poll", p.a, 3);
  c.recvs("poll", p.b, 1);
  c.bytes("memory", p.b, seed_b, {{100000, 30000, seed_b, 0}, {200000, 4096, seed_b, 0}});
}

void read_after_send(Case& c) {
  Pair p(c, c.a, c.b);
  c.recv("recv", p.b, {recv_wr(p.b, 9, 4096, 3000)});
  c.post("post", p.a,
         {p.wr(IBV_WR_SEND, 1, 0, 3000, 0), p.wr(IBV_WR_RDMA_READ, 2, 8192, 3000, 4096)});
  c.sends("poll", p.a, 2);
  c.recvs("poll", p.b, 1);
  c.bytes("memory", p.a, seed_a, {{8192, 3000, seed_a, 0}});
}

// 64 requests of all kinds at once; completions come in posting order, receives too.
void mixed(Case& c, Api api, bool one_cq) {
  PairOptions o;
  o.sq = o.rq = 80;
  o.post = api;
  o.one_cq = one_cq;
  o.size_a = o.size_b = 1 << 19;
  Pair p(c, c.a, c.b, o);
  std::vector<SendWr> wrs;
  std::vector<RecvWr> recvs;
  std::vector<Range> at_a, at_b;
  for (uint64_t i = 0; i < 64; ++i) {
    const uint64_t at = i * 4096;
    const auto size = static_cast<uint32_t>(1 + (i * 397) % 4000);
    switch (i % 6) {
    case 0:
    case 1:
      wrs.push_back(p.wr(IBV_WR_RDMA_WRITE, i, at, size, at));
      at_b.push_back({at, size, seed_a, at});
      break;
    case 2:
      wrs.push_back(p.wr(IBV_WR_RDMA_READ, i, at, size, at));
      at_a.push_back({at, size, seed_b, at});
      break;
    case 3:
      wrs.push_back(p.wr(IBV_WR_SEND_WITH_IMM, i, at, size, 0));
      recvs.push_back(recv_wr(p.b, 1000 + i, at, 4000));
      at_b.push_back({at, size, seed_a, at});
      break;
    case 4:
      wrs.push_back(p.wr(IBV_WR_RDMA_WRITE_WITH_IMM, i, at, size, at));
      recvs.push_back(recv_wr(p.b, 1000 + i, 0, 0));
      at_b.push_back({at, size, seed_a, at});
      break;
    default:
      poke(p.b, at, 7 * i);
      wrs.push_back(atomic(p, IBV_WR_ATOMIC_FETCH_AND_ADD, i, at, at, i));
    }
  }
  const int receives = static_cast<int>(recvs.size());
  c.recv("recv", p.b, recvs);
  c.post("post", p.a, wrs, api);
  WcList l = c.sends("poll", p.a, 64);
  bool in_order = l.n == 64;
  for (int i = 0; i < l.n; ++i)
    in_order = in_order && l.wc[i].wr_id == static_cast<uint64_t>(i);
  c.expect("order", "completions in posting order", in_order);
  c.recvs("poll", p.b, receives);
  bool sums = true;
  for (uint64_t i = 5; i < 64; i += 6) {
    sums = sums && peek(p.a, i * 4096) == 7 * i && peek(p.b, i * 4096) == 8 * i;
    for (const End* e : {&p.a, &p.b})
      (*e->s)(Fill{e->buf.addr + i * 4096, 8, e == &p.a ? seed_a : seed_b, i * 4096});
  }
  c.expect("atomics", "old and new values", sums);
  c.bytes("memory", p.a, seed_a, at_a);
  c.bytes("memory", p.b, seed_b, at_b);
}

// Both sides write to each other at once.
void both_ways(Case& c) {
  PairOptions o;
  o.size_a = o.size_b = 1 << 19;
  o.mr_a = IBV_ACCESS_LOCAL_WRITE | remote_all;
  Pair p(c, c.a, c.b, o);
  std::vector<SendWr> to_b, to_a;
  std::vector<Range> at_a, at_b;
  for (uint64_t i = 0; i < 16; ++i) {
    to_b.push_back(p.wr(IBV_WR_RDMA_WRITE, i, i * 8192, 5000, 262144 + i * 8192));
    to_a.push_back(p.reverse(IBV_WR_RDMA_WRITE, i, i * 8192, 5000, 262144 + i * 8192));
    at_b.push_back({262144 + i * 8192, 5000, seed_a, i * 8192});
    at_a.push_back({262144 + i * 8192, 5000, seed_b, i * 8192});
  }
  c.post("a to b", p.a, to_b);
  c.post("b to a", p.b, to_a);
  c.sends("a to b", p.a, 16);
  c.sends("b to a", p.b, 16);
  c.bytes("memory", p.a, seed_a, at_a);
  c.bytes("memory", p.b, seed_b, at_b);
}

} // namespace

void add_order_cases(std::vector<Test>& t) {
  t.push_back({"order.last_byte", last_byte});
  t.push_back({"order.aligned_words", aligned_words});
  t.push_back({"order.write_send", [](Case& c) { write_then(c, IBV_WR_SEND, true); }});
  t.push_back({"order.write_empty_send", [](Case& c) { write_then(c, IBV_WR_SEND, false); }});
  t.push_back(
      {"order.write_write_imm", [](Case& c) { write_then(c, IBV_WR_RDMA_WRITE_WITH_IMM, true); }});
  t.push_back({"order.write_empty_write_imm",
               [](Case& c) { write_then(c, IBV_WR_RDMA_WRITE_WITH_IMM, false); }});
  t.push_back({"order.read_back", read_back});
  t.push_back({"order.read_then_write", read_then_write});
  t.push_back({"order.atomics_between_writes", atomics_between_writes});
  t.push_back({"order.atomic_sums", [](Case& c) { atomic_sums(c, Api::classic); }});
  t.push_back({"order.atomic_sums_wr", [](Case& c) { atomic_sums(c, Api::extended); }});
  t.push_back({"order.fence", fence});
  t.push_back({"order.read_after_send", read_after_send});
  t.push_back({"order.mixed", [](Case& c) { mixed(c, Api::classic, false); }});
  t.push_back({"order.mixed_wr", [](Case& c) { mixed(c, Api::extended, false); }});
  t.push_back({"order.mixed_one_cq", [](Case& c) { mixed(c, Api::classic, true); }});
  t.push_back({"order.both_ways", both_ways});
}

} // namespace verify
