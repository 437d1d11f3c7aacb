// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Family `state`: QPs moved, reset, destroyed and reused, and regions deregistered, with work
// outstanding. Work is kept outstanding without timing: a SEND waits for a receive that is not
// posted yet (RNR, retried for ever).
#include "case.h"

#include "names.h"

namespace verify {
namespace {

// Requests of a's that cannot finish before b posts receives.
std::vector<SendWr> stuck(const Pair& p, int n) {
  std::vector<SendWr> w;
  for (int i = 0; i < n; ++i)
    w.push_back(p.wr(i ? IBV_WR_RDMA_WRITE : IBV_WR_SEND, static_cast<uint64_t>(i) + 1,
                     static_cast<uint64_t>(i) * 64, 64, static_cast<uint64_t>(i) * 4096));
  return w;
}

std::vector<RecvWr> receives(const End& e, int n) {
  std::vector<RecvWr> r;
  for (int i = 0; i < n; ++i)
    r.push_back(
        recv_wr(e, static_cast<uint64_t>(i) + 21, 32768 + static_cast<uint64_t>(i) * 64, 64));
  return r;
}

// No completion may come: looked at after a real round trip on another QP pair.
void nothing(Case& c, const char* step, End& e, const CqInfo& cq) {
  Poll p;
  p.cq = cq.id;
  p.want = 1;
  p.timeout_ms = 50;
  c.expect(step, (std::string(e.name) + " without completion").c_str(), (*e.s)(p).n == 0);
}

void works(Case& c, const char* step, Pair& p) {
  c.recv(step, p.b, {recv_wr(p.b, 31, 16384, 100)});
  c.post(step, p.a,
         {p.wr(IBV_WR_RDMA_WRITE, 41, 0, 3000, 20000), p.wr(IBV_WR_SEND, 42, 0, 100, 0)});
  c.sends(step, p.a, 2);
  c.recvs(step, p.b, 1);
  c.bytes(step, p.b, seed_b, {{16384, 100, seed_a, 0}, {20000, 3000, seed_a, 0}});
}

void reset_and_reconnect(Case& c, Pair& p) {
  for (End* e : {&p.a, &p.b}) {
    c.modify("again", *e, IBV_QPS_RESET);
    c.modify("again", *e, IBV_QPS_INIT);
  }
  p.connect();
  works(c, "again", p);
}

void error_with_work(Case& c) {
  Pair p(c, c.a, c.b);
  c.recv("outstanding", p.a, receives(p.a, 3));
  c.post("outstanding", p.a, stuck(p, 4));
  c.modify("error", p.a, IBV_QPS_ERR);
  c.sends("error", p.a, 4);
  c.recvs("error", p.a, 3);
  c.log_state("error", p.a, IBV_QPS_ERR);
  c.post("after", p.a, stuck(p, 2));
  c.sends("after", p.a, 2);
  // A receive posted now should be flushed too; rxe does that only when something else wakes it.
  c.log_events("after", p.a);
  c.bytes("after", p.b, seed_b, {});
  reset_and_reconnect(c, p);
}

// The responder goes to error: the initiator's requests find nobody.
void responder_in_error(Case& c) {
  PairOptions o;
  o.timeout = 12, o.retry = 2;
  Pair p(c, c.a, c.b, o);
  c.recv("outstanding", p.b, receives(p.b, 2));
  c.modify("error", p.b, IBV_QPS_ERR);
  c.recvs("error", p.b, 2);
  c.post("after", p.a, {p.wr(IBV_WR_RDMA_WRITE, 1, 0, 64, 0), p.wr(IBV_WR_RDMA_WRITE, 2, 0, 8, 0)});
  c.sends("after", p.a, 2);
  c.log_state("after", p.a, IBV_QPS_ERR);
  c.bytes("after", p.b, seed_b, {});
}

void reset_with_work(Case& c) {
  Pair p(c, c.a, c.b);
  c.recv("outstanding", p.a, receives(p.a, 3));
  c.post("outstanding", p.a, stuck(p, 4));
  c.modify("reset", p.a, IBV_QPS_RESET);
  c.log_state("reset", p.a, IBV_QPS_RESET);
  nothing(c, "reset", p.a, p.a.scq);
  nothing(c, "reset", p.a, p.a.rcq);
  // b gets a receive now: what was outstanding must not arrive any more.
  c.recv("late", p.b, receives(p.b, 1));
  nothing(c, "late", p.b, p.b.rcq);
  c.bytes("late", p.b, seed_b, {});
  reset_and_reconnect(c, p);
  nothing(c, "again", p.a, p.a.scq);
}

void reset_idle(Case& c) {
  Pair p(c, c.a, c.b);
  works(c, "first", p);
  (*p.b.s)(Fill{p.b.buf.addr, p.b.buf.size, seed_b, 0});
  reset_and_reconnect(c, p);
  (*p.b.s)(Fill{p.b.buf.addr, p.b.buf.size, seed_b, 0});
  reset_and_reconnect(c, p);
}

void drain(Case& c, End& e) {
  ModifyQp m;
  m.qp = e.qp.id;
  m.state = IBV_QPS_SQD;
  m.sqd_notify = 1;
  c.say("drain", "%s to SQD returns %s", e.name, errno_name((*e.s)(m).err).c_str());
}

void log_draining(Case& c, const char* step, End& e) {
  QueryQp q;
  q.qp = e.qp.id;
  QpState s = (*e.s)(q);
  c.say(step, "%s QP is in %s%s", e.name, state_name(s.state), s.draining ? ", draining" : "");
}

// Idle QP to SQD: drained at once; what is posted there waits for RTS.
void sqd_idle(Case& c) {
  Pair p(c, c.a, c.b);
  works(c, "first", p);
  (*p.b.s)(Fill{p.b.buf.addr, p.b.buf.size, seed_b, 0});
  drain(c, p.a);
  c.log_events("drain", p.a);
  log_draining(c, "drain", p.a);
  if (c.post("in SQD", p.a, {p.wr(IBV_WR_RDMA_WRITE, 5, 0, 64, 4096)}))
    return;
  nothing(c, "in SQD", p.a, p.a.scq);
  c.bytes("in SQD", p.b, seed_b, {});
  c.modify("back", p.a, IBV_QPS_RTS);
  c.sends("back", p.a, 1);
  c.bytes("back", p.b, seed_b, {{4096, 64, seed_a, 0}});
}

// SQD with work under way: what has begun is finished, the event comes, and then there is silence
// until RTS. (How much had begun is a matter of time. rxe takes a request that waits for a receive
// for finished: it reports drained and sends it again only in RTS.)
void sqd_with_work(Case& c) {
  PairOptions o;
  o.size_a = o.size_b = 1 << 20;
  Pair p(c, c.a, c.b, o);
  std::vector<SendWr> w;
  for (uint64_t i = 0; i < 8; ++i)
    w.push_back(p.wr(i % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, i, i << 17, 1 << 17, i << 17));
  c.post("outstanding", p.a, w);
  drain(c, p.a);
  Event drained = (*p.a.s)(NextEvent{hang_ms});
  c.say("drained", "a event %s", drained.got ? event_name(drained.type) : "none BAD");
  Poll poll;
  poll.cq = p.a.scq.id;
  poll.want = 8;
  poll.timeout_ms = 0;
  int done = (*p.a.s)(poll).n;
  if (done < 8)
    nothing(c, "drained", p.a, p.a.scq);
  else
    c.expect("drained", "a without completion", true);
  log_draining(c, "drained", p.a);
  c.modify("back", p.a, IBV_QPS_RTS);
  poll.want = 8 - done;
  poll.timeout_ms = hang_ms;
  WcList l = (*p.a.s)(poll);
  bool good = l.n == 8 - done;
  for (int i = 0; i < l.n; ++i)
    good = good && l.wc[i].status == IBV_WC_SUCCESS &&
           l.wc[i].wr_id == static_cast<uint64_t>(done) + static_cast<uint64_t>(i);
  c.expect("back", "the rest completes in order", good);
}

void post_too_early(Case& c) {
  PairOptions o;
  o.connect = false;
  Pair p(c, c.a, c.b, o);
  c.recv("in INIT", p.a, receives(p.a, 1));
  c.post("in INIT", p.a, {p.wr(IBV_WR_RDMA_WRITE, 1, 0, 8, 0)});
  c.modify("reset", p.a, IBV_QPS_RESET);
  c.post("in RESET", p.a, {p.wr(IBV_WR_RDMA_WRITE, 2, 0, 8, 0)});
  c.modify("bad", p.a, IBV_QPS_RTS); // not a legal transition
  c.log_state("bad", p.a, IBV_QPS_RESET);
  nothing(c, "after", p.a, p.a.scq);
  c.bytes("after", p.b, seed_b, {});
}

// Receives posted in INIT serve once the QP is connected; a responder may stay in RTR.
void responder_in_rtr(Case& c) {
  PairOptions o;
  o.connect = false;
  Pair p(c, c.a, c.b, o);
  c.recv("in INIT", p.b, {recv_wr(p.b, 21, 0, 64)});
  ModifyQp m;
  m.qp = p.b.qp.id, m.state = IBV_QPS_RTR, m.dest_qpn = p.a.qp.qpn;
  m.dgid = p.a.s->info.gid, m.dlid = p.a.s->info.lid, m.mtu = p.a.s->info.active_mtu;
  c.result("to RTR", (*p.b.s)(m).err);
  p.to_rts(p.a, p.b);
  c.post("post", p.a,
         {p.wr(IBV_WR_SEND, 1, 0, 64, 0), p.wr(IBV_WR_RDMA_WRITE, 2, 64, 64, 4096),
          p.wr(IBV_WR_RDMA_READ, 3, 8192, 64, 128)});
  c.sends("poll", p.a, 3);
  c.recvs("poll", p.b, 1);
  c.log_state("after", p.b, IBV_QPS_RTR);
  c.bytes("after", p.b, seed_b, {{0, 64, seed_a, 0}, {4096, 64, seed_a, 64}});
}

// Whether all bytes of the range are there by now.
bool is_there(End& e, const Range& range) {
  Check k;
  k.addr = e.buf.addr + range.off;
  k.size = range.size;
  k.seed = range.seed;
  k.from = range.from;
  return (*e.s)(k).bad == 0;
}

void dereg_source(Case& c) {
  Pair p(c, c.a, c.b);
  c.post("outstanding", p.a, stuck(p, 3));
  c.result("dereg", (*p.a.s)(DeregMr{p.a.mr.id}).err);
  c.recv("receive", p.b, receives(p.b, 1));
  // What a device does with a source that is gone is its own affair; what it calls done has
  // arrived, and nothing else has, but the message, maybe, whole: it was sent before, and soft-RoCE
  // may send it once more before it comes to look at the source.
  std::vector<Range> arrived;
  const WcList done = c.sends("poll", p.a, 3);
  for (int i = 0; i < done.n; ++i) {
    const bool success = done.wc[i].status == IBV_WC_SUCCESS;
    const uint64_t at = done.wc[i].wr_id - 1;
    const Range range{at == 0 ? 32768 : at * 4096, 64, seed_a, at * 64};
    if (at == 0 && success) { // a message is there once its receive has completed
      Poll received;
      received.cq = p.b.rcq.id;
      received.want = 1;
      (*p.b.s)(received);
    }
    if (success || (at == 0 && is_there(p.b, range)))
      arrived.push_back(range);
  }
  c.log_state("after", p.a, IBV_QPS_ERR);
  c.log_state("after", p.b, IBV_QPS_RTS);
  c.bytes("after", p.b, seed_b, arrived);
}

void dereg_receive(Case& c) {
  Pair p(c, c.a, c.b);
  c.recv("outstanding", p.b, receives(p.b, 2));
  c.result("dereg", (*p.b.s)(DeregMr{p.b.mr.id}).err);
  c.post("post", p.a, {p.wr(IBV_WR_SEND, 1, 0, 64, 0), p.wr(IBV_WR_SEND, 2, 0, 64, 0)});
  c.sends("poll", p.a, 2);
  c.recvs("poll", p.b, 2);
  c.log_state("after", p.a, IBV_QPS_ERR);
  c.log_state("after", p.b, IBV_QPS_ERR);
  c.bytes("after", p.b, seed_b, {});
}

void dereg_target(Case& c) {
  Pair p(c, c.a, c.b);
  works(c, "first", p);
  (*p.b.s)(Fill{p.b.buf.addr, p.b.buf.size, seed_b, 0});
  c.result("dereg", (*p.b.s)(DeregMr{p.b.mr.id}).err);
  c.post("after", p.a, {p.wr(IBV_WR_RDMA_WRITE, 1, 0, 64, 0), p.wr(IBV_WR_RDMA_READ, 2, 0, 64, 0)});
  c.sends("after", p.a, 2);
  c.log_state("after", p.b, IBV_QPS_ERR);
  c.log_events("after", p.b);
  c.bytes("after", p.b, seed_b, {});
}

// Requests that are outstanding when their QP goes away never land; a new QP takes its place.
void destroy_with_work(Case& c) {
  Pair p(c, c.a, c.b);
  c.recv("outstanding", p.a, receives(p.a, 3));
  c.post("outstanding", p.a, stuck(p, 4));
  c.result("destroy", (*p.a.s)(DestroyQp{p.a.qp.id}).err);
  c.recv("late", p.b, receives(p.b, 1));
  nothing(c, "late", p.b, p.b.rcq);
  c.bytes("late", p.b, seed_b, {});
  PairOptions o;
  o.share = &p;
  Pair again(c, c.a, c.b, o);
  works(c, "again", again);
}

void destroy_and_reuse(Case& c) {
  Pair p(c, c.a, c.b);
  PairOptions o;
  o.share = &p;
  for (int i = 0; i < 8; ++i) {
    Pair q(c, c.a, c.b, o);
    works(c, "round", q);
    (*p.b.s)(Fill{p.b.buf.addr, p.b.buf.size, seed_b, 0});
    End& first = i % 2 ? q.a : q.b;
    End& second = i % 2 ? q.b : q.a;
    c.result("destroy", (*first.s)(DestroyQp{first.qp.id}).err);
    c.result("destroy", (*second.s)(DestroyQp{second.qp.id}).err);
  }
}

void responder_destroyed(Case& c) {
  PairOptions o;
  o.timeout = 12, o.retry = 2;
  Pair p(c, c.a, c.b, o);
  works(c, "first", p);
  (*p.b.s)(Fill{p.b.buf.addr, p.b.buf.size, seed_b, 0});
  c.result("destroy", (*p.b.s)(DestroyQp{p.b.qp.id}).err);
  c.post("after", p.a, {p.wr(IBV_WR_RDMA_WRITE, 1, 0, 64, 0), p.wr(IBV_WR_RDMA_READ, 2, 0, 64, 0)});
  c.sends("after", p.a, 2);
  c.log_state("after", p.a, IBV_QPS_ERR);
  c.bytes("after", p.b, seed_b, {});
}

void busy_objects(Case& c) {
  Pair p(c, c.a, c.b);
  c.result("PD with QP and region", (*p.a.s)(DeallocPd{p.a.pd}).err);
  c.result("CQ with QP", (*p.a.s)(DestroyCq{p.a.scq.id}).err);
  works(c, "after", p);
}

} // namespace

void add_state_cases(std::vector<Test>& t) {
  t.push_back({"state.error_with_work", error_with_work});
  t.push_back({"state.responder_in_error", responder_in_error});
  t.push_back({"state.reset_with_work", reset_with_work});
  t.push_back({"state.reset_idle", reset_idle});
  t.push_back({"state.sqd_idle", sqd_idle});
  t.push_back({"state.sqd_with_work", sqd_with_work});
  t.push_back({"state.post_too_early", post_too_early});
  t.push_back({"state.responder_in_rtr", responder_in_rtr});
  t.push_back({"state.dereg_source", dereg_source});
  t.push_back({"state.dereg_receive", dereg_receive});
  t.push_back({"state.dereg_target", dereg_target});
  t.push_back({"state.destroy_with_work", destroy_with_work});
  t.push_back({"state.destroy_and_reuse", destroy_and_reuse});
  t.push_back({"state.responder_destroyed", responder_destroyed});
  t.push_back({"state.busy_objects", busy_objects});
}

} // namespace verify
