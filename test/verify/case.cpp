// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "case.h"

#include "names.h"

#include <algorithm>
#include <cstdarg>
#include <cstring>
#include <utility>

namespace verify {

void Log::line(const char* test, const char* step, const char* text) {
  std::fprintf(to_, "%s | %s | %s\n", test, step, text);
  std::fflush(to_); // a case that dies leaves what it saw
}

void Case::say(const char* step, const char* format, ...) {
  char text[4096];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  log_.line(name.c_str(), step, text);
}

void Case::expect(const char* step, const char* what, bool good) {
  say(step, "%s %s", what, good ? "ok" : "BAD");
  if (!good)
    log_.bad();
}

void Case::result(const char* step, int err) {
  say(step, "returns %s", errno_name(err).c_str());
}

namespace {

template <class Result> std::string describe_post(const Result& r) {
  std::string text = "returns " + errno_name(r.err);
  if (r.err)
    text += r.bad < 0 ? " bad_wr=none" : " bad_wr=#" + std::to_string(r.bad);
  return text;
}

} // namespace

int Case::post(const char* step, End& e, std::vector<SendWr> wrs, Api api) {
  PostSend p;
  p.qp = e.qp.id;
  p.api = api;
  p.n = static_cast<int>(std::min<size_t>(wrs.size(), max_wrs));
  std::copy_n(wrs.begin(), p.n, p.wr);
  PostResult r = (*e.s)(p);
  say(step, "%s posts %d: %s", e.name, p.n, describe_post(r).c_str());
  return r.err;
}

int Case::recv(const char* step, End& e, std::vector<RecvWr> wrs, int srq) {
  PostRecv p;
  p.qp = e.qp.id;
  p.srq = srq;
  p.n = static_cast<int>(std::min<size_t>(wrs.size(), max_wrs));
  std::copy_n(wrs.begin(), p.n, p.wr);
  PostResult r = (*e.s)(p);
  say(step, "%s posts %d receives: %s", e.name, p.n, describe_post(r).c_str());
  return r.err;
}

std::string Case::describe(const Wc& w, const End& e) const {
  char text[256];
  int n = std::snprintf(text, sizeof text, "%s", status_name(w.status));
  auto add = [&](const char* format, auto... v) {
    n += std::snprintf(text + n, sizeof text - static_cast<size_t>(n), format, v...);
  };
  // Of a failed request only wr_id, status and qp_num are defined (ibv_poll_cq(3)).
  const bool good = w.status == IBV_WC_SUCCESS;
  if (good)
    add(" %s", wc_opcode_name(w.opcode));
  add(" id=%llu", static_cast<unsigned long long>(w.wr_id));
  const bool counted = w.opcode & IBV_WC_RECV || w.opcode == IBV_WC_RDMA_READ ||
                       w.opcode == IBV_WC_COMP_SWAP || w.opcode == IBV_WC_FETCH_ADD;
  if (good && (counted || options.strict))
    add(" len=%u", w.byte_len);
  if (good && w.opcode & IBV_WC_RECV) {
    // IBV_WC_GRH means something on UD only.
    const bool grh = w.flags & IBV_WC_GRH && (e.type == IBV_QPT_UD || options.strict);
    add(" flags=%s%s", grh ? "GRH" : "", w.flags & IBV_WC_WITH_IMM ? "IMM" : "");
    if (w.flags & IBV_WC_WITH_IMM)
      add(" imm=%#x", w.imm);
  }
  add(" qp=%s", w.qp == e.qp.id ? "own" : w.qp < 0 ? "unknown" : "other");
  return text;
}

WcList Case::poll(const char* step, End& e, const CqInfo& cq, int want, int timeout_ms) {
  Poll p;
  p.cq = cq.id;
  p.want = want;
  p.timeout_ms = timeout_ms;
  WcList l = (*e.s)(p);
  for (int i = 0; i < l.n; ++i)
    say(step, "%s completes %s", e.name, describe(l.wc[i], e).c_str());
  if (l.n != want) {
    say(step, "%s has %d completions of %d BAD", e.name, l.n, want);
    log_.bad();
  }
  return l;
}

WcList Case::sends(const char* step, End& e, int want, int timeout_ms) {
  return poll(step, e, e.scq, want, timeout_ms);
}

WcList Case::recvs(const char* step, End& e, int want, int timeout_ms) {
  return poll(step, e, e.rcq, want, timeout_ms);
}

int Case::state(End& e, int expected, int wait_ms) {
  QueryQp q;
  q.qp = e.qp.id;
  q.state = expected;
  q.wait_ms = wait_ms;
  return (*e.s)(q).state;
}

const char* Case::awaited(const char* step, const std::string& subject) {
  return options.awaited.at(name, step, subject, asked_[std::string(step) + " | " + subject]++);
}

void Case::saw(const char* step, const std::string& subject, const std::string& what,
               const char* awaited) {
  say(step, "%s%s", subject.c_str(), what.c_str());
  if (options.awaited.given() && (!awaited || what != awaited))
    std::fprintf(stderr, "verify: %s | %s | %s%s, but awaited: %s\n", name.c_str(), step,
                 subject.c_str(), what.c_str(), awaited ? awaited : "nothing is said of it");
}

void Case::log_state(const char* step, End& e, int expected) {
  const std::string subject = std::string(e.name) + " QP is in ";
  const char* wanted = awaited(step, subject);
  int seen = -1;
  if (!wanted || std::strcmp(wanted, state_name(expected)) != 0)
    seen = state(e, expected, 100);
  // A state that is awaited, but not expected, is taken only where the expected one did not come.
  for (int s = IBV_QPS_RESET; wanted && seen != expected && s <= IBV_QPS_ERR; ++s)
    if (!std::strcmp(wanted, state_name(s)))
      seen = state(e, s, hang_ms);
  saw(step, subject, state_name(seen), wanted);
}

bool Case::log_cq_event(const char* step, End& e, const CqInfo& cq) {
  const std::string subject = std::string(e.name) + " has ", some = "an event";
  const char* wanted = awaited(step, subject);
  const bool got = (*e.s)(AwaitCqEvent{cq.id, wanted && wanted == some ? hang_ms : 150}).got;
  saw(step, subject, got ? some : "no event", wanted);
  return got;
}

namespace {

std::string listed(std::vector<std::string> events) {
  std::sort(events.begin(), events.end());
  std::string all;
  for (auto& s : events)
    all += " " + s;
  return all.empty() ? " none" : all;
}

// As listed() shows them, where each is one word, or four for a stranger's.
size_t count_of_listed(const std::string& all) {
  const std::string stranger = " of a stranger";
  size_t strangers = 0;
  for (size_t at = 0; (at = all.find(stranger, at)) != std::string::npos; at += stranger.size())
    ++strangers;
  return all == " none"
             ? 0
             : static_cast<size_t>(std::count(all.begin(), all.end(), ' ')) - 3 * strangers;
}

} // namespace

int Case::log_events(const char* step, End& e, int first_ms) {
  const std::string subject = std::string(e.name) + " events:";
  const char* wanted = awaited(step, subject);
  // Their number is enough: if another one comes in the place of an awaited one, that differs.
  const size_t want = wanted ? count_of_listed(wanted) : 0;
  std::vector<std::string> seen;
  auto wait = [&] {
    return wanted ? (seen.size() < want ? hang_ms : 0) : seen.empty() ? first_ms : 40;
  };
  for (Event v; (v = (*e.s)(NextEvent{wait()})).got && seen.size() < 32;)
    seen.push_back(std::string(event_name(v.type)) + (v.own ? "" : " of a stranger"));
  saw(step, subject, listed(seen), wanted);
  if (e.s == &a || e.s == &b) // others end with the case
    looked_[e.s] = e.name;
  return static_cast<int>(seen.size());
}

void Case::log_late_events() {
  int wait_ms = 40; // the other side has had this time, too
  for (auto& [side, of] : looked_) {
    std::vector<std::string> late;
    for (Event v; (v = (*side)(NextEvent{wait_ms})).got && late.size() < 32;)
      late.push_back(event_name(v.type));
    wait_ms = 0;
    if (!late.empty())
      saw("end", std::string(of) + " late events:", listed(late), nullptr);
  }
}

int Case::modify(const char* step, End& e, int target) {
  ModifyQp m;
  m.qp = e.qp.id;
  m.state = target;
  int err = (*e.s)(m).err;
  say(step, "%s to %s returns %s", e.name, state_name(target), errno_name(err).c_str());
  return err;
}

void Case::bytes(const char* step, End& e, uint64_t seed, std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& x, const Range& y) { return x.off < y.off; });
  Check k;
  k.addr = e.buf.addr;
  k.size = e.buf.size;
  k.seed = seed;
  for (auto& r : ranges)
    if (r.size && k.n < max_ranges)
      k.range[k.n++] = r;
  Verdict v = (*e.s)(k);
  if (!v.bad)
    return expect(step, (std::string(e.name) + " bytes").c_str(), true);
  say(step, "%s bytes: %llu wrong, first at +%llu BAD", e.name,
      static_cast<unsigned long long>(v.bad), static_cast<unsigned long long>(v.first));
  log_.bad();
}

// --- the pair --------------------------------------------------------------------------------

namespace {

struct SetupFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void must(int err, const char* what) {
  if (err)
    throw SetupFailed(std::string(what) + ": " + errno_name(err));
}

void build_memory(End& e, uint64_t size, uint64_t seed, int access) {
  Side& s = *e.s;
  Outcome pd = s(AllocPd{});
  must(pd.err, "alloc_pd");
  e.pd = pd.id;
  e.buf = s(MakeBuf{size, seed});
  must(e.buf.err, "mmap");
  RegMr r{};
  r.pd = e.pd;
  r.addr = e.buf.addr;
  r.size = e.buf.size;
  r.access = access;
  e.mr = s(r);
  must(e.mr.err, "reg_mr");
}

void build_queues(End& e, const PairOptions& o, int qp_access) {
  Side& s = *e.s;
  CreateCq cq;
  cq.cqe = static_cast<int>(o.sq + o.rq);
  cq.channel = o.channel;
  cq.api = o.poll;
  e.scq = s(cq);
  must(e.scq.err, "create_cq");
  e.rcq = o.one_cq ? e.scq : s(cq);
  must(e.rcq.err, "create_cq");
  CreateQp q;
  q.pd = e.pd;
  q.send_cq = e.scq.id;
  q.recv_cq = e.rcq.id;
  q.type = e.type = o.type;
  q.sq_sig_all = o.sig_all;
  q.api = o.post;
  q.cap = {o.sq, o.rq, o.sge, o.sge, o.inline_data};
  e.qp = s(q);
  must(e.qp.err, "create_qp");
  ModifyQp m;
  m.qp = e.qp.id;
  m.state = IBV_QPS_INIT;
  m.access = o.type == IBV_QPT_UC ? qp_access & IBV_ACCESS_REMOTE_WRITE : qp_access;
  must(s(m).err, "modify to INIT");
}

SendWr request(const End& from, const End& to, int opcode, uint64_t id, uint64_t at, uint32_t size,
               uint64_t remote_at) {
  SendWr w = {};
  w.wr_id = id;
  w.opcode = opcode;
  w.flags = IBV_SEND_SIGNALED;
  w.imm = static_cast<uint32_t>(0xcafe0000 + id);
  w.remote_addr = to.mr.addr + remote_at;
  w.rkey = to.mr.rkey;
  w.ah = from.ah;
  w.remote_qpn = to.qp.qpn;
  w.remote_qkey = 0x11111111;
  w.num_sge = 1;
  w.sge[0] = {from.mr.addr + at, size, from.mr.lkey};
  return w;
}

} // namespace

Pair::Pair(Case& c, Side& sa, Side& sb, PairOptions o) : c(c), o(o) {
  a.s = &sa, a.name = "a";
  b.s = &sb, b.name = "b";
  if (o.share) {
    a.pd = o.share->a.pd, a.buf = o.share->a.buf, a.mr = o.share->a.mr;
    b.pd = o.share->b.pd, b.buf = o.share->b.buf, b.mr = o.share->b.mr;
  } else {
    build_memory(a, o.size_a, seed_a, o.mr_a);
    build_memory(b, o.size_b, seed_b, o.mr_b);
  }
  build_queues(a, o, o.qp_a);
  build_queues(b, o, o.qp_b);
  if (o.connect)
    connect();
}

void Pair::to_rts(End& e, const End& other) {
  ModifyQp m;
  m.qp = e.qp.id;
  m.dest_qpn = other.qp.qpn;
  m.dgid = other.s->info.gid;
  m.dlid = other.s->info.lid;
  m.mtu = std::min(e.s->info.active_mtu, other.s->info.active_mtu);
  m.timeout = o.timeout, m.retry_cnt = o.retry;
  m.rnr_retry = o.rnr_retry, m.rnr_timer = o.rnr_timer;
  m.state = IBV_QPS_RTR;
  const int initiates = std::exchange(m.rd_atomic, &e == &b ? o.dest_rd_atomic_b : m.rd_atomic);
  must((*e.s)(m).err, "modify to RTR");
  m.rd_atomic = initiates;
  m.state = IBV_QPS_RTS;
  must((*e.s)(m).err, "modify to RTS");
  if (o.type == IBV_QPT_UD) {
    Outcome ah = (*e.s)(CreateAh{e.pd, other.s->info.gid, other.s->info.lid});
    must(ah.err, "create_ah");
    e.ah = ah.id;
  }
}

void Pair::connect() {
  to_rts(a, b);
  to_rts(b, a);
}

SendWr Pair::wr(int opcode, uint64_t id, uint64_t at_a, uint32_t size, uint64_t at_b) const {
  return request(a, b, opcode, id, at_a, size, at_b);
}

SendWr Pair::reverse(int opcode, uint64_t id, uint64_t at_b, uint32_t size, uint64_t at_a) const {
  return request(b, a, opcode, id, at_b, size, at_a);
}

RecvWr recv_wr(const End& e, uint64_t id, uint64_t at, uint32_t size) {
  RecvWr w = {};
  w.wr_id = id;
  w.num_sge = 1;
  w.sge[0] = {e.mr.addr + at, size, e.mr.lkey};
  return w;
}

} // namespace verify
