// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Family `cq`: completion queues and channels: sizes, arming, sharing, threads.
#include "case.h"

#include "names.h"

#include <algorithm>

namespace verify {
namespace {

void arm(Case& c, const char* step, End& e, const CqInfo& cq, bool solicited) {
  c.result(step, (*e.s)(ArmCq{cq.id, solicited}).err);
}

// An event that must come. (Spurious ones are allowed, so only these are judged one by one.)
void event(Case& c, const char* step, End& e, const CqInfo& cq) {
  Event v = (*e.s)(AwaitCqEvent{cq.id, hang_ms});
  c.expect(step, (std::string(e.name) + " event for its CQ").c_str(), v.got && v.own);
}

PairOptions with_channel() {
  PairOptions o;
  o.channel = true;
  return o;
}

// Armed, then a completion: an event. Each arming is good for one.
void arm_then_complete(Case& c, Api poll_api) {
  PairOptions o = with_channel();
  o.poll = poll_api;
  Pair p(c, c.a, c.b, o);
  for (uint64_t i = 0; i < 4; ++i) {
    c.recv("recv", p.b, {recv_wr(p.b, i, i * 64, 64)});
    arm(c, "arm a", p.a, p.a.scq, false);
    arm(c, "arm b", p.b, p.b.rcq, false);
    c.post("post", p.a, {p.wr(IBV_WR_SEND, i, 0, 64, 0)});
    event(c, "send", p.a, p.a.scq);
    event(c, "receive", p.b, p.b.rcq);
    c.sends("poll", p.a, 1);
    c.recvs("poll", p.b, 1);
  }
}

// Armed for the next completion while one is being read: between ibv_start_poll and ibv_end_poll.
void arm_within_poll(Case& c) {
  PairOptions o = with_channel();
  o.poll = Api::extended;
  Pair p(c, c.a, c.b, o);
  arm(c, "arm a", p.a, p.a.scq, false);
  for (uint64_t i = 0; i < 4; ++i) {
    c.post("post", p.a, {p.wr(IBV_WR_RDMA_WRITE, i, 0, 64, 4096)});
    event(c, "write", p.a, p.a.scq);
    Poll poll;
    poll.cq = p.a.scq.id;
    poll.want = 1;
    poll.arm_within = true;
    WcList l = (*p.a.s)(poll);
    c.say("poll", "a completes %s", l.n == 1 ? c.describe(l.wc[0], p.a).c_str() : "nothing BAD");
    if (l.n != 1)
      c.fail();
  }
}

// The pattern every program uses: arm, poll once more, sleep. The completion may be there already.
void arm_after_complete(Case& c) {
  Pair p(c, c.a, c.b, with_channel());
  for (uint64_t i = 0; i < 4; ++i) {
    c.recv("recv", p.b, {recv_wr(p.b, i, i * 64, 64)});
    c.post("post", p.a, {p.wr(IBV_WR_SEND, i, 0, 64, 0)});
    c.sends("poll", p.a, 1); // so b's completion is there
    arm(c, "arm b", p.b, p.b.rcq, false);
    c.recvs("poll", p.b, 1);
    c.post("post", p.a, {p.wr(IBV_WR_RDMA_WRITE, i, 0, 64, 4096)});
    c.sends("poll", p.a, 1);
  }
}

void solicited_only(Case& c) {
  Pair p(c, c.a, c.b, with_channel());
  std::vector<RecvWr> r;
  for (uint64_t i = 0; i < 4; ++i)
    r.push_back(recv_wr(p.b, i, i * 64, 64));
  c.recv("recv", p.b, r);
  arm(c, "arm b", p.b, p.b.rcq, true);
  c.post("plain", p.a, {p.wr(IBV_WR_SEND, 1, 0, 64, 0)});
  c.sends("plain", p.a, 1);
  if (c.log_cq_event("plain", p.b, p.b.rcq))
    arm(c, "arm b", p.b, p.b.rcq, true);
  SendWr w = p.wr(IBV_WR_SEND, 2, 0, 64, 0);
  w.flags |= IBV_SEND_SOLICITED;
  c.post("solicited", p.a, {w});
  event(c, "solicited", p.b, p.b.rcq);
  c.recvs("solicited", p.b, 2);
  arm(c, "arm b", p.b, p.b.rcq, true);
  w = p.wr(IBV_WR_RDMA_WRITE_WITH_IMM, 3, 0, 64, 4096);
  w.flags |= IBV_SEND_SOLICITED;
  c.post("solicited write_imm", p.a, {w});
  event(c, "solicited write_imm", p.b, p.b.rcq);
  c.recvs("solicited write_imm", p.b, 1);
  // A failed receive should wake a solicited-only sleeper as well; rxe's flush does not.
  arm(c, "arm b", p.b, p.b.rcq, true);
  c.modify("error", p.b, IBV_QPS_ERR);
  c.log_cq_event("error", p.b, p.b.rcq);
  c.recvs("error", p.b, 1);
}

// Errors and flushes wake a sleeper, unsignalled requests included.
void error_wakes(Case& c) {
  Pair p(c, c.a, c.b, with_channel());
  arm(c, "arm a", p.a, p.a.scq, false);
  SendWr w = p.wr(IBV_WR_RDMA_WRITE, 1, 0, 64, 4096);
  w.flags = 0;
  w.rkey ^= 0x55;
  c.post("post", p.a, {w});
  event(c, "error", p.a, p.a.scq);
  c.sends("error", p.a, 1);
}

// Two CQs on one channel: the event names the one that has something.
void shared_channel(Case& c) {
  PairOptions o = with_channel();
  Pair p(c, c.a, c.b, o);
  CreateCq q;
  q.channel = -1 - p.a.scq.id;
  CqInfo second = (*p.a.s)(q);
  c.result("second CQ", second.err);
  CreateQp k;
  k.pd = p.a.pd;
  k.send_cq = k.recv_cq = second.id;
  k.cap = {16, 16, 4, 4, 0};
  o.share = &p;
  o.connect = false;
  Pair other(c, c.a, c.b, o);
  other.a.qp = (*p.a.s)(k);
  other.a.scq = other.a.rcq = second;
  c.result("QP on it", other.a.qp.err);
  ModifyQp m;
  m.qp = other.a.qp.id, m.state = IBV_QPS_INIT;
  c.result("to INIT", (*p.a.s)(m).err);
  other.connect();
  for (uint64_t i = 0; i < 2; ++i) {
    arm(c, "arm first", p.a, p.a.scq, false);
    arm(c, "arm second", p.a, second, false);
    Pair& busy = i ? p : other;
    c.post(i ? "first" : "second", busy.a, {busy.wr(IBV_WR_RDMA_WRITE, i, 0, 64, 4096)});
    event(c, i ? "first" : "second", busy.a, busy.a.scq);
    c.sends(i ? "first" : "second", busy.a, 1);
  }
}

// A CQ of exactly what the device allows can be made and used; one more cannot.
void exactly_max(Case& c) {
  Pair p(c, c.a, c.b);
  CreateCq q;
  q.cqe = c.a.info.dev.max_cqe;
  CqInfo most = (*p.a.s)(q);
  c.result("max_cqe", most.err);
  c.expect("max_cqe", "at least that many", most.cqe >= q.cqe);
  CreateCq too;
  too.cqe = c.a.info.dev.max_cqe + 1;
  c.result("max_cqe + 1", (*p.a.s)(too).err);
  too.cqe = 0;
  c.result("none", (*p.a.s)(too).err);
  too.cqe = 1;
  CqInfo one = (*p.a.s)(too);
  c.result("one", one.err);
  c.expect("one", "at least one", one.cqe >= 1);
  c.result("destroy", (*p.a.s)(DestroyCq{most.id}).err);
}

// Resizing keeps what is in the queue.
void resize(Case& c) {
  Pair p(c, c.a, c.b);
  std::vector<SendWr> w;
  for (uint64_t i = 0; i < 16; ++i)
    w.push_back(p.wr(IBV_WR_SEND, i, 0, 8, 0));
  std::vector<RecvWr> r;
  for (uint64_t i = 0; i < 16; ++i)
    r.push_back(recv_wr(p.b, 100 + i, i * 8, 8));
  c.recv("recv", p.b, r);
  c.post("post", p.a, w);
  c.sends("poll", p.a, 16); // so b's 16 completions are in its queue
  CqInfo grown = (*p.b.s)(ResizeCq{p.b.rcq.id, 512});
  c.result("grow", grown.err);
  if (!grown.err)
    c.expect("grow", "at least that many", grown.cqe >= 512);
  c.result("below its contents", (*p.b.s)(ResizeCq{p.b.rcq.id, 4}).err);
  c.result("beyond the device", (*p.b.s)(ResizeCq{p.b.rcq.id, c.a.info.dev.max_cqe + 1}).err);
  c.recvs("poll", p.b, 16);
  c.result("shrink", (*p.b.s)(ResizeCq{p.b.rcq.id, 64}).err);
  c.recv("recv", p.b, {recv_wr(p.b, 200, 0, 8)});
  c.post("post", p.a, {p.wr(IBV_WR_SEND, 50, 0, 8, 0)});
  c.recvs("poll", p.b, 1);
}

// ibv_next_poll over completions known to be there, one ibv_start_poll for all.
void next_poll(Case& c) {
  PairOptions o;
  o.poll = Api::extended;
  Pair p(c, c.a, c.b, o);
  std::vector<RecvWr> r;
  std::vector<SendWr> w;
  for (uint64_t i = 0; i < 10; ++i) {
    r.push_back(recv_wr(p.b, i, i * 64, 64));
    w.push_back(
        p.wr(i % 2 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, i, 0, static_cast<uint32_t>(i), 0));
  }
  c.recv("recv", p.b, r);
  c.post("post", p.a, w);
  c.sends("poll", p.a, 10);
  Poll poll;
  poll.cq = p.b.rcq.id;
  poll.want = poll.certain = 10;
  WcList l = (*p.b.s)(poll);
  for (int i = 0; i < l.n; ++i)
    c.say("next_poll", "b completes %s", c.describe(l.wc[i], p.b).c_str());
}

// N threads, each with its own QP, on one CQ that all of them poll.
void threads(Case& c, int n, Api poll_api) {
  PairOptions o;
  o.sq = 32;
  o.poll = poll_api;
  o.size_a = o.size_b = 16 * 4096;
  Pair first(c, c.a, c.b, o);
  o.share = &first;
  o.connect = false;
  std::vector<Pair> pairs;
  Storm s{};
  s.threads = n;
  s.ops = 300;
  CreateCq q;
  q.cqe = 1024;
  q.api = poll_api;
  s.cq = (*first.a.s)(q).id;
  for (int i = 0; i < n; ++i) {
    Pair p(c, c.a, c.b, o);
    CreateQp k;
    k.pd = first.a.pd;
    k.send_cq = k.recv_cq = s.cq;
    k.cap = {32, 1, 1, 1, 0};
    p.a.qp = (*first.a.s)(k);
    ModifyQp m;
    m.qp = p.a.qp.id, m.state = IBV_QPS_INIT;
    (*first.a.s)(m);
    p.connect();
    s.qp[i] = p.a.qp.id;
  }
  s.local = first.a.mr.addr, s.lkey = first.a.mr.lkey;
  s.remote = first.b.mr.addr, s.rkey = first.b.mr.rkey;
  s.size = 2000;
  Verdict v = (*first.a.s)(s);
  c.expect("storm", "no completion lost, doubled, failed or out of order", v.bad == 0);
  std::vector<Range> there{{0, static_cast<uint64_t>(n) * 2000, seed_a, 0}};
  c.bytes("memory", first.b, seed_b, there);
}

// A server that sleeps on its receive CQ only, and never looks at its send CQ.
// With `one`, completions of both kinds share a CQ and are taken one a call, as rsockets, rping and
// librdmacm's rdma_get_*_comp do: a call that brings nothing sends them to sleep.
void sleep_on_receives_only(Case& c, bool one) {
  PairOptions o = with_channel();
  o.one_cq = one;
  o.sq = 64;
  o.mr_a = IBV_ACCESS_LOCAL_WRITE | remote_all;
  Pair p(c, c.a, c.b, o);
  auto asleep = [&](const char* step, End& e) {
    Poll poll;
    poll.cq = e.rcq.id;
    poll.want = 1;
    poll.wait = Wait::event;
    poll.timeout_ms = hang_ms;
    poll.one = one;
    WcList l = (*e.s)(poll);
    c.say(step, "%s woke for %s", e.name,
          l.n == 1 ? c.describe(l.wc[0], e).c_str() : "nothing BAD");
    if (l.n != 1)
      c.fail();
  };
  auto unsignalled = [](SendWr w) {
    w.flags = 0;
    return w;
  };
  for (uint64_t i = 0; i < 6; ++i) {
    c.recv("recv", p.a, {recv_wr(p.a, i, 60000, 64)});
    c.recv("recv", p.b, {recv_wr(p.b, i, 60000, 64)});
    c.post("request", p.a,
           {unsignalled(p.wr(IBV_WR_RDMA_WRITE, i, 0, 8000, 8192)),
            unsignalled(p.wr(IBV_WR_SEND, i, 0, 32, 0))});
    asleep("request", p.b);
    c.post("reply", p.b,
           {unsignalled(p.reverse(IBV_WR_RDMA_WRITE, i, 20000, 8000, 20000)),
            unsignalled(p.reverse(IBV_WR_RDMA_WRITE_WITH_IMM, i, 0, 0, 0))});
    asleep("reply", p.a);
  }
  c.bytes("memory", p.b, seed_b, {{8192, 8000, seed_a, 0}, {60000, 32, seed_a, 0}});
  c.bytes("memory", p.a, seed_a, {{20000, 8000, seed_b, 20000}});
}

} // namespace

void add_cq_cases(std::vector<Test>& t) {
  t.push_back({"cq.arm_then_complete", [](Case& c) { arm_then_complete(c, Api::classic); }});
  t.push_back({"cq.arm_then_complete_ex", [](Case& c) { arm_then_complete(c, Api::extended); }});
  t.push_back({"cq.arm_within_poll", arm_within_poll});
  t.push_back({"cq.arm_after_complete", arm_after_complete});
  t.push_back({"cq.solicited_only", solicited_only});
  t.push_back({"cq.error_wakes", error_wakes});
  t.push_back({"cq.shared_channel", shared_channel});
  t.push_back({"cq.exactly_max", exactly_max});
  t.push_back({"cq.resize", resize});
  t.push_back({"cq.next_poll", next_poll});
  t.push_back({"cq.threads", [](Case& c) { threads(c, 4, Api::classic); }});
  t.push_back({"cq.threads_ex", [](Case& c) { threads(c, 3, Api::extended); }});
  t.push_back({"cq.sleep_on_receives_only", [](Case& c) { sleep_on_receives_only(c, false); }});
  t.push_back({"cq.sleep_and_take_one", [](Case& c) { sleep_on_receives_only(c, true); }});
}

} // namespace verify
