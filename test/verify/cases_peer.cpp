// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Family `peer`: processes that are killed, stopped, daemonised, idle or gone. The peer is one more
// agent process on b's host, so these need nothing of b but its signals.
#include "case.h"

#include "names.h"

#include "pattern.h"

#include <csignal>
#include <cstring>

namespace verify {
namespace {

// One agent process on b's side that is about to be treated badly, connected to a.
struct Victim {
  Victim(Case& c, PairOptions o = {}) : side(c.new_peer()), p(c, c.a, side, o) {
    p.b.name = "peer";
  }
  Side side;
  Pair p;
};

int signal_to(Case& c, int pid, int number) {
  int err = c.b(verify::Signal{pid, number}).err;
  c.say("signal", "%s returns %s", strsignal(number), errno_name(err).c_str());
  if (number == SIGKILL)
    std::fprintf(stderr, "verify: process %d ends without a word\n", pid);
  return err;
}

// Some complete, the next is given up, the rest is flushed: how many of each is a matter of time.
void given_up(Case& c, const char* step, const WcList& l, int posted) {
  int i = 0;
  while (i < l.n && l.wc[i].status == IBV_WC_SUCCESS)
    ++i;
  const bool failed = i < l.n && l.wc[i].status == IBV_WC_RETRY_EXC_ERR;
  bool flushed = true, ids = true;
  for (int j = i + 1; j < l.n; ++j)
    flushed = flushed && l.wc[j].status == IBV_WC_WR_FLUSH_ERR;
  for (int j = 0; j < l.n; ++j)
    ids = ids && l.wc[j].wr_id == static_cast<uint64_t>(j);
  c.expect(step, "one completion for each request, in order", l.n == posted && ids);
  c.say(step, "%s",
        failed     ? "one RETRY_EXC_ERR"
        : i == l.n ? "all succeed"
                   : status_name(l.wc[i].status));
  c.expect(step, "then only flushes", flushed);
}

void killed(Case& c, int opcode) {
  PairOptions o;
  o.timeout = 12, o.retry = 3;
  o.size_a = o.size_b = 1 << 20;
  Victim v(c, o);
  c.post("alive", v.p.a, {v.p.wr(opcode, 77, 0, 4096, 0)});
  c.sends("alive", v.p.a, 1);
  PostSend s;
  s.qp = v.p.a.qp.id;
  for (uint64_t i = 0; i < 16; ++i)
    s.wr[s.n++] = v.p.wr(opcode, i, 0, 1 << 19, 1 << 19);
  c.a(s);
  signal_to(c, v.side.info.pid, SIGKILL);
  // At least one more is posted to a peer that is surely dead.
  Poll poll;
  poll.cq = v.p.a.scq.id;
  poll.want = 16;
  poll.timeout_ms = hang_ms;
  WcList l = c.a(poll);
  if (l.n == 16 && l.wc[15].status == IBV_WC_SUCCESS) { // all were through before the signal
    s.n = 1;
    s.wr[0] = v.p.wr(opcode, 0, 0, 64, 0);
    c.a(s);
    poll.want = 1;
    l = c.a(poll);
    given_up(c, "killed", l, 1);
  } else {
    given_up(c, "killed", l, 16);
  }
  c.log_state("killed", v.p.a, IBV_QPS_ERR);
}

// A sender dies in the middle: the receiver is left with a working process.
void sender_killed(Case& c) {
  PairOptions o;
  o.mr_a = IBV_ACCESS_LOCAL_WRITE | remote_all;
  o.size_a = o.size_b = 1 << 20;
  Victim v(c, o);
  PostSend s;
  s.qp = v.p.b.qp.id;
  for (uint64_t i = 0; i < 16; ++i)
    s.wr[s.n++] = v.p.reverse(IBV_WR_RDMA_WRITE, i, 0, 1 << 20, 0);
  v.side(s);
  signal_to(c, v.side.info.pid, SIGKILL);
  Pair fresh(c, c.a, c.b);
  c.post("others", fresh.a, {fresh.wr(IBV_WR_RDMA_WRITE, 1, 0, 4096, 0)});
  c.sends("others", fresh.a, 1);
  c.log_state("after", v.p.a, IBV_QPS_RTS);
  c.result("destroy", c.a(DestroyQp{v.p.a.qp.id}).err);
  c.result("dereg", c.a(DeregMr{v.p.a.mr.id}).err);
}

// Stock NICs serve a stopped process; adverb's responder is a thread of that process, so its peers
// wait (documented). Both end well once it goes on.
void stopped(Case& c) {
  Victim v(c);
  c.post("running", v.p.a, {v.p.wr(IBV_WR_RDMA_WRITE, 1, 0, 4096, 0)});
  c.sends("running", v.p.a, 1);
  signal_to(c, v.side.info.pid, SIGSTOP);
  c.post("stopped", v.p.a, {v.p.wr(IBV_WR_RDMA_WRITE, 2, 0, 4096, 8192)});
  Poll poll;
  poll.cq = v.p.a.scq.id;
  poll.want = 1;
  const char* wanted = c.awaited("while stopped", "");
  poll.timeout_ms = wanted && !std::strcmp(wanted, "completes") ? hang_ms : 2000;
  WcList l = c.a(poll);
  c.say("while stopped", "%s", l.n ? "completes" : "does not complete");
  signal_to(c, v.side.info.pid, SIGCONT);
  poll.timeout_ms = hang_ms;
  if (!l.n)
    l = c.a(poll);
  c.say("in the end", "%s", l.n ? c.describe(l.wc[0], v.p.a).c_str() : "no completion BAD");
  if (!l.n)
    c.fail();
  c.bytes("memory", v.p.b, seed_b, {{0, 4096, seed_a, 0}, {8192, 4096, seed_a, 0}});
}

// Opens the device, forks, lets the parent go, works on in the child.
void daemonised(Case& c, bool active) {
  Side side = c.new_peer();
  std::fprintf(stderr, "verify: process %d ends without a word\n", side.info.pid);
  side.info = side(Daemonise{});
  std::fprintf(stderr, "verify: process %d\n", side.info.pid);
  c.result("daemonise", side.info.err);
  PairOptions o;
  o.mr_a = IBV_ACCESS_LOCAL_WRITE | remote_all;
  Pair p(c, c.a, side, o);
  if (active) {
    // The kernel ties a device file to the credentials object it was opened with, and a child has
    // its own: librxe's doorbell, a write() to that file, is refused.
    if (c.post("post", p.b,
               {p.reverse(IBV_WR_RDMA_WRITE, 1, 0, 9000, 0),
                p.reverse(IBV_WR_RDMA_READ, 2, 16384, 9000, 20000)}))
      return;
    const WcList done = c.sends("poll", p.b, 2);
    // What the provider refuses later, of requests that had to wait, has done nothing.
    const bool good = done.n == 2 && done.wc[1].status == IBV_WC_SUCCESS;
    c.bytes("memory", p.a, seed_a,
            good ? std::vector<Range>{{0, 9000, seed_b, 0}} : std::vector<Range>{});
    c.bytes("memory", p.b, seed_b,
            good ? std::vector<Range>{{16384, 9000, seed_a, 20000}} : std::vector<Range>{});
  } else {
    c.recv("recv", p.b, {recv_wr(p.b, 21, 30000, 64)});
    c.post("post", p.a, {p.wr(IBV_WR_RDMA_WRITE, 1, 0, 9000, 0), p.wr(IBV_WR_SEND, 2, 0, 64, 0)});
    c.sends("poll", p.a, 2);
    c.recvs("poll", p.b, 1);
    c.bytes("memory", p.b, seed_b, {{0, 9000, seed_a, 0}, {30000, 64, seed_a, 0}});
  }
}

// A completed WRITE has landed, even if its sender exits at once.
void exits_after_write(Case& c) {
  PairOptions o;
  o.mr_a = IBV_ACCESS_LOCAL_WRITE | remote_all;
  o.size_a = o.size_b = 1 << 18;
  Victim v(c, o);
  c.post("post", v.p.b, {v.p.reverse(IBV_WR_RDMA_WRITE, 1, 3, 200000, 1000)});
  c.sends("poll", v.p.b, 1);
  v.side.start(Exit{});
  c.bytes("memory", v.p.a, seed_a, {{1000, 200000, seed_b, 3}});
  c.log_state("after", v.p.a, IBV_QPS_RTS);
}

// Posts and does not poll: the data arrive all the same, and the completions wait.
void never_polls(Case& c, int opcode) {
  PairOptions o;
  o.size_a = o.size_b = 1 << 18;
  Victim v(c, o);
  const uint32_t size = 100000;
  const bool send = opcode == IBV_WR_SEND;
  if (send)
    c.recv("recv", v.p.b, {recv_wr(v.p.b, 21, 0, size)});
  SendWr w = v.p.wr(opcode, 1, 0, size, 0);
  w.flags = 0;
  c.post("post", v.p.a, {w});
  Check k;
  k.addr = v.p.b.buf.addr;
  k.size = v.p.b.buf.size;
  k.seed = seed_b;
  k.timeout_ms = hang_ms;
  k.n = 1;
  k.range[0] = {0, size, seed_a, 0};
  c.expect("memory", "arrives without a poll", v.side(k).bad == 0);
  c.post("later", v.p.a, {v.p.wr(IBV_WR_RDMA_WRITE, 2, 0, 64, 0)});
  c.sends("later", v.p.a, 1);
}

// As `never_polls`, and the peer does nothing but look at its memory: no verb is called there.
void target_makes_no_call(Case& c) {
  Victim v(c);
  const uint64_t last = 20000 - 1;
  const uint8_t value = pattern(seed_a, last);
  uint64_t at = v.p.b.buf.addr + last / 8 * 8;
  v.side(Poke{at, v.side(Peek{at}).value ^ (uint64_t{0xff} << (last % 8 * 8))});
  AwaitByte wait{v.p.b.buf.addr, v.p.b.buf.addr + last, 20000, seed_a, 0, value, hang_ms};
  v.side.start(wait);
  c.post("post", v.p.a, {v.p.wr(IBV_WR_RDMA_WRITE, 1, 0, 20000, 0)});
  c.expect("memory", "whole message behind its last byte", v.side.receive<AwaitByte>().bad == 0);
  c.sends("poll", v.p.a, 1);
}

// Regions in 32 PDs, each with a QP, as a program of an ordinary user with 8 MiB of lockable
// memory.
void many_pds(Case& c) {
  std::vector<std::unique_ptr<Pair>> pairs;
  PairOptions o;
  o.sq = o.rq = 8;
  o.size_a = o.size_b = 65536;
  for (int i = 0; i < 32; ++i)
    pairs.push_back(std::make_unique<Pair>(c, c.a, c.b, o));
  for (uint64_t i = 0; i < 32; ++i) {
    Pair& p = *pairs[i];
    c.recv("recv", p.b, {recv_wr(p.b, i, 50000, 1000)});
    c.post("post", p.a,
           {p.wr(IBV_WR_RDMA_WRITE, 1, i, 30000, i), p.wr(IBV_WR_SEND, 2, 0, 1000, 0)});
  }
  for (uint64_t i = 0; i < 32; ++i) {
    Pair& p = *pairs[i];
    c.sends("poll", p.a, 2);
    c.recvs("poll", p.b, 1);
    c.bytes("memory", p.b, seed_b, {{i, 30000, seed_a, i}, {50000, 1000, seed_a, 0}});
  }
}

} // namespace

void add_peer_cases(std::vector<Test>& t) {
  t.push_back({"peer.killed.write", [](Case& c) { killed(c, IBV_WR_RDMA_WRITE); }});
  t.push_back({"peer.killed.read", [](Case& c) { killed(c, IBV_WR_RDMA_READ); }});
  t.push_back({"peer.sender_killed", sender_killed});
  t.push_back({"peer.stopped", stopped});
  t.push_back({"peer.daemonised.passive", [](Case& c) { daemonised(c, false); }});
  t.push_back({"peer.daemonised.active", [](Case& c) { daemonised(c, true); }});
  t.push_back({"peer.exits_after_write", exits_after_write});
  t.push_back({"peer.never_polls.write", [](Case& c) { never_polls(c, IBV_WR_RDMA_WRITE); }});
  t.push_back({"peer.never_polls.send", [](Case& c) { never_polls(c, IBV_WR_SEND); }});
  t.push_back({"peer.target_makes_no_call", target_makes_no_call});
  t.push_back({"peer.many_pds", many_pds});
}

} // namespace verify
