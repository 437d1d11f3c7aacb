// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Family `data`: every opcode over sizes, alignments, signalling, both post and poll APIs, inline,
// waiting, scatter/gather and lists. The full product is far too long for an emulated CPU, so the
// default is a seeded all-pairs sample: every value of every factor meets every value of every
// other.
#include "case.h"

#include "pattern.h"
#include "sample.h"

#include <algorithm>
#include <map>
#include <memory>

namespace verify {
namespace {

struct Operation {
  const char* name;
  int type, opcode;
};

constexpr Operation operations[] = {
    {"data.rc.write", IBV_QPT_RC, IBV_WR_RDMA_WRITE},
    {"data.rc.write_imm", IBV_QPT_RC, IBV_WR_RDMA_WRITE_WITH_IMM},
    {"data.rc.read", IBV_QPT_RC, IBV_WR_RDMA_READ},
    {"data.rc.send", IBV_QPT_RC, IBV_WR_SEND},
    {"data.rc.send_imm", IBV_QPT_RC, IBV_WR_SEND_WITH_IMM},
    {"data.uc.write", IBV_QPT_UC, IBV_WR_RDMA_WRITE},
    {"data.uc.write_imm", IBV_QPT_UC, IBV_WR_RDMA_WRITE_WITH_IMM},
    {"data.uc.send", IBV_QPT_UC, IBV_WR_SEND},
    {"data.uc.send_imm", IBV_QPT_UC, IBV_WR_SEND_WITH_IMM},
    {"data.ud.send", IBV_QPT_UD, IBV_WR_SEND},
    {"data.ud.send_imm", IBV_QPT_UD, IBV_WR_SEND_WITH_IMM},
};

constexpr uint32_t sizes[] = {0,    1,    2,    7,     8,     9,       63,     64,
                              4095, 4096, 4097, 65535, 65536, 1 << 20, 8 << 20};
constexpr uint32_t offsets[] = {0, 1, 3, 8, 4095};
constexpr int sge_counts[] = {1, 2, 3, 8};
constexpr int counts[] = {1, 4, 16};
enum Signal { every, fourth, last, by_qp };
const char* const signal_names[] = {"every", "fourth", "last", "by_qp"};
const char* const api_names[] = {"post_send", "wr"};
const char* const poll_names[] = {"poll_cq", "start_poll"};

// The order of the factors in a sampled row.
enum Factor {
  f_op,
  f_size,
  f_at_a,
  f_at_b,
  f_signal,
  f_post,
  f_poll,
  f_wait,
  f_sge,
  f_n,
  f_inline,
  f_list,
  factors
};
const std::vector<int> levels = {11, 15, 5, 5, 4, 2, 2, 2, 4, 3, 2, 2};

constexpr uint32_t inline_room = 64;
constexpr uint32_t guard = 4096; // bytes looked at on both sides of what may change
constexpr uint64_t buffer_size = (8 << 20) + 4 * 4096;
constexpr uint32_t grh = 40; // UD receives begin with room for it

struct Combo {
  const Operation& op;
  uint32_t size;
  uint32_t at_a, at_b;
  Signal signal;
  Api post, poll;
  Wait wait;
  int sges, n;
  bool inlined, list;
};

Combo combo_of(const std::vector<int>& row, const SideInfo& info) {
  auto pick = [&](Factor f) { return row[static_cast<size_t>(f)]; };
  Combo k = {operations[pick(f_op)],
             sizes[pick(f_size)],
             offsets[pick(f_at_a)],
             offsets[pick(f_at_b)],
             static_cast<Signal>(pick(f_signal)),
             static_cast<Api>(pick(f_post)),
             static_cast<Api>(pick(f_poll)),
             static_cast<Wait>(pick(f_wait)),
             sge_counts[pick(f_sge)],
             counts[pick(f_n)],
             pick(f_inline) == 1,
             pick(f_list) == 1};
  if (k.op.type == IBV_QPT_UD)
    k.size = std::min(k.size, 128u << info.active_mtu);
  if (k.size > inline_room || k.op.opcode == IBV_WR_RDMA_READ)
    k.inlined = false;
  // The largest only where it matters most: an emulated CPU moves a few MB/s.
  const bool main_path =
      k.op.type == IBV_QPT_RC && (k.op.opcode == IBV_WR_RDMA_WRITE ||
                                  k.op.opcode == IBV_WR_RDMA_READ || k.op.opcode == IBV_WR_SEND);
  if (!main_path)
    k.size = std::min(k.size, k.op.type == IBV_QPT_RC ? 1u << 20 : 65536u);
  // librxe (rdma-core 44) miscounts ibv_wr_set_sge_list() with unequal lengths and
  // ibv_wr_set_inline_data_list(); what it does with them is left to the `post` family.
  if (k.post == Api::extended && (k.inlined || k.size % static_cast<uint32_t>(k.sges)))
    k.sges = 1;
  if (k.size >= 65535)
    k.n = std::min(k.n, k.size > 65536 ? 1 : 4);
  return k;
}

// A message's pieces in local memory lie in reverse order, so that a gather that forgets the order
// of its entries, or their bounds, shows.
std::vector<Range> pieces(uint32_t size, int n, bool equal) {
  std::vector<Range> all;
  uint32_t done = 0;
  for (int i = 0; i < n; ++i) {
    uint32_t part = (size - done) / static_cast<uint32_t>(n - i) / (equal ? 1 : 2);
    if (i == n - 1)
      part = size - done;
    all.push_back({size - done - part, part, 0, 0});
    done += part;
  }
  return all;
}

class Runner {
public:
  explicit Runner(Case& c) : c(c) {
    PairOptions o;
    o.size_a = o.size_b = buffer_size;
    memory_ = std::make_unique<Pair>(c, c.a, c.b, o);
  }

  void run(int number, const Combo& k) {
    std::snprintf(step_, sizeof step_, "%03d size=%u at=%u->%u signal=%s %s %s %s sge=%d n=%d%s%s",
                  number, k.size, k.at_a, k.at_b, signal_names[k.signal],
                  api_names[static_cast<int>(k.post)], poll_names[static_cast<int>(k.poll)],
                  k.wait == Wait::event ? "event" : "spin", k.sges, k.n, k.inlined ? " inline" : "",
                  k.list ? " list" : "");
    Pair& p = pair_for(k);
    plan(k, p);
    if (!recv_.empty())
      post_receives(p);
    post_sends(k, p);
    const bool receives = !recv_.empty();
    finish(p.a, p.a.scq, wanted_, k.wait, 1, "sent");
    // An acknowledged RC message has been received: all of these are there.
    if (receives)
      finish(p.b, p.b.rcq, k.n, k.wait, k.op.type == IBV_QPT_RC ? k.n : 1, "received");
    verify(k, p.a, to_a_, span_a_, k.inlined ? scribble : seed_a);
    verify(k, p.b, to_b_, span_b_, seed_b);
  }

  void end() {
    c.bytes("end", memory_->a, seed_a, {});
    c.bytes("end", memory_->b, seed_b, {});
  }

private:
  static constexpr uint64_t scribble = 0x5c;

  Pair& pair_for(const Combo& k) {
    int key = k.op.type * 16 + static_cast<int>(k.post) * 8 + static_cast<int>(k.poll) * 4 +
              static_cast<int>(k.wait) * 2 + (k.signal == by_qp);
    auto& slot = pairs_[key];
    if (!slot) {
      PairOptions o;
      o.type = k.op.type;
      o.post = k.post;
      o.poll = k.poll;
      o.channel = k.wait == Wait::event;
      o.sig_all = k.signal == by_qp;
      o.sge = 8;
      o.inline_data = inline_room;
      o.share = memory_.get();
      slot = std::make_unique<Pair>(c, c.a, c.b, o);
    }
    return *slot;
  }

  // Lays out the messages: requests, receives, and what memory must look like afterwards.
  void plan(const Combo& k, Pair& p) {
    send_.clear(), recv_.clear(), to_a_.clear(), to_b_.clear();
    wanted_ = 0;
    const bool read = k.op.opcode == IBV_WR_RDMA_READ;
    const bool two_sided = k.op.opcode == IBV_WR_SEND || k.op.opcode == IBV_WR_SEND_WITH_IMM;
    const bool imm = k.op.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    const uint32_t head = two_sided && k.op.type == IBV_QPT_UD ? grh : 0;
    const uint64_t stride = (k.size + head + 64 + 4095) / 4096 * 4096;
    const auto parts = pieces(k.size, k.sges, k.post == Api::extended);
    for (int i = 0; i < k.n; ++i) {
      const uint64_t at_a = 4096 + k.at_a + stride * static_cast<uint64_t>(i);
      const uint64_t at_b = 4096 + k.at_b + stride * static_cast<uint64_t>(i);
      SendWr w = p.wr(k.op.opcode, static_cast<uint64_t>(i) + 100, at_a, k.size, at_b);
      const bool tell = k.signal == every || i == k.n - 1 || (k.signal == fourth && i % 4 == 3);
      w.flags =
          (k.signal != by_qp && tell ? IBV_SEND_SIGNALED : 0) | (k.inlined ? IBV_SEND_INLINE : 0);
      wanted_ += k.signal == by_qp || tell;
      w.num_sge = k.size || k.sges > 1 ? k.sges : 0; // an empty message may have no entry at all
      uint64_t done = 0;
      for (int j = 0; j < w.num_sge; ++j) {
        const Range& r = parts[static_cast<size_t>(j)];
        w.sge[j] = {p.a.mr.addr + at_a + r.off, static_cast<uint32_t>(r.size), p.a.mr.lkey};
        if (read)
          to_a_.push_back({at_a + r.off, r.size, seed_b, at_b + done});
        else
          to_b_.push_back({at_b + head + done, r.size, seed_a, at_a + r.off});
        done += r.size;
      }
      send_.push_back(w);
      if (two_sided || imm) {
        RecvWr r = recv_wr(p.b, static_cast<uint64_t>(i) + 500, at_b, k.size + head + (i % 2) * 16);
        if (imm)
          r.num_sge = 0;
        else if (i % 3 == 2 && r.sge[0].length > 1) { // scattered over two entries
          r.num_sge = 2;
          r.sge[1] = r.sge[0];
          r.sge[0].length /= 2;
          r.sge[1].addr += r.sge[0].length;
          r.sge[1].length -= r.sge[0].length;
        }
        recv_.push_back(r);
        if (head) // whatever header the device leaves there
          headers_.push_back(at_b);
      }
    }
    span_a_ = {4096 + k.at_a, stride * static_cast<uint64_t>(k.n), 0, 0};
    span_b_ = {4096 + k.at_b, stride * static_cast<uint64_t>(k.n), 0, 0};
  }

  void post_receives(Pair& p) {
    PostRecv r;
    r.qp = p.b.qp.id;
    for (auto& w : recv_)
      r.wr[r.n++] = w;
    if (PostResult x = (*p.b.s)(r); x.err)
      c.say(step_, "post_recv failed: %d BAD", x.err), c.fail();
  }

  void post_sends(const Combo& k, Pair& p) {
    for (size_t i = 0; i < send_.size();) {
      PostSend s;
      s.qp = p.a.qp.id;
      s.api = k.post;
      do
        s.wr[s.n++] = send_[i++];
      while (k.list && i < send_.size());
      if (PostResult x = (*p.a.s)(s); x.err)
        c.say(step_, "post_send failed: %d BAD", x.err), c.fail();
    }
    if (k.inlined) // inline data belong to the caller again as soon as the post returns
      scribble_over(p.a);
  }

  void scribble_over(End& e) {
    const uint64_t from = span_a_.off - guard;
    (*e.s)(Fill{e.buf.addr + from, std::min(span_a_.size + 2 * guard, e.buf.size - from), scribble,
                from});
  }

  void finish(End& e, const CqInfo& cq, int want, Wait wait, int certain, const char* what) {
    Poll poll;
    poll.cq = cq.id;
    poll.want = want;
    poll.wait = wait;
    poll.certain = certain;
    poll.timeout_ms = hang_ms;
    WcList l = (*e.s)(poll);
    std::string text;
    for (int i = 0; i < std::min(l.n, want + 2); ++i)
      text += (i ? "; " : "") + c.describe(l.wc[i], e);
    c.say(step_, "%s %d of %d: %s", what, l.n, want, text.c_str());
    if (l.n != want)
      c.fail();
  }

  // The bytes that had to change, and a guard around them that must not; then all is put back.
  void verify(const Combo& k, End& e, std::vector<Range>& changed, const Range& span,
              uint64_t background) {
    if (e.name[0] == 'b') {
      for (uint64_t at : headers_)
        (*e.s)(Fill{e.buf.addr + at, grh, background, at});
      headers_.clear();
    }
    const uint64_t from = span.off - guard, size = span.size + 2 * guard;
    Check k2;
    k2.addr = e.buf.addr + from;
    k2.size = std::min(size, e.buf.size - from);
    k2.seed = background;
    k2.from = from;
    // No completion tells a UC or UD sender that its bytes have landed.
    k2.timeout_ms = k.op.type == IBV_QPT_RC ? 0 : hang_ms;
    std::sort(changed.begin(), changed.end(),
              [](const Range& x, const Range& y) { return x.off < y.off; });
    for (auto& r : changed)
      if (r.size)
        k2.range[k2.n++] = {r.off - from, r.size, r.seed, r.from};
    Verdict v = (*e.s)(k2);
    if (v.bad) {
      c.say(step_, "%s has %llu wrong bytes, first at +%llu BAD", e.name,
            static_cast<unsigned long long>(v.bad), static_cast<unsigned long long>(v.first));
      c.fail();
    }
    if (!changed.empty() || background == scribble)
      (*e.s)(Fill{k2.addr, k2.size, e.name[0] == 'a' ? seed_a : seed_b, from});
  }

  Case& c;
  char step_[200] = "";
  std::unique_ptr<Pair> memory_;
  std::map<int, std::unique_ptr<Pair>> pairs_;
  std::vector<SendWr> send_;
  std::vector<RecvWr> recv_;
  std::vector<Range> to_a_, to_b_;
  std::vector<uint64_t> headers_;
  Range span_a_ = {}, span_b_ = {};
  int wanted_ = 0;
};

template <int Op> void run_operation(Case& c) {
  Runner runner(c);
  int number = 0;
  Rows rows;
  if (c.options.full)
    rows = wide_sample(levels, f_op, Op, c.options.seed);
  else
    for (uint64_t i = 0; i < 2; ++i) // two samples: pairs twice, and many triples
      for (auto& row : pairwise_sample(levels, c.options.seed * 2 + i))
        rows.push_back(row);
  for (auto& row : rows)
    if (row[f_op] == Op)
      runner.run(number++, combo_of(row, c.a.info));
  runner.end();
}

template <int Op> void add(std::vector<Test>& t) {
  t.push_back({operations[Op].name, run_operation<Op>});
  if constexpr (Op + 1 < static_cast<int>(std::size(operations)))
    add<Op + 1>(t);
}

} // namespace

void add_data_cases(std::vector<Test>& t) {
  add<0>(t);
}

} // namespace verify
