// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Family `data`, continued: the atomics, whose size is fixed, over target and result addresses,
// signalling, both post and poll APIs, waiting, scattered results, and lists.
#include "case.h"

namespace verify {
namespace {

constexpr uint64_t targets[] = {0, 8, 4088, 65536 - 8};
constexpr uint64_t results[] = {0, 1, 3, 4092}; // the result may lie anywhere, even across pages

struct Setting {
  Api post, poll;
  Wait wait;
  bool by_qp, last_only, list, scattered;
};

// `n` atomics on one target; each must return what the one before it left.
void run(Case& c, int number, int opcode, const Setting& k, uint64_t target, uint64_t result) {
  PairOptions o;
  o.post = k.post;
  o.poll = k.poll;
  o.channel = k.wait == Wait::event;
  o.sig_all = k.by_qp;
  Pair p(c, c.a, c.b, o);
  constexpr uint64_t n = 4, start = 0x1122334455667788;
  (*p.b.s)(Poke{p.b.buf.addr + target, start});
  std::string step = std::to_string(number) + " target=" + std::to_string(target) +
                     " result=" + std::to_string(result) + (k.scattered ? " scattered" : "") +
                     (k.list ? " list" : "");
  PostSend s;
  s.qp = p.a.qp.id;
  s.api = k.post;
  uint64_t value = start, before[n];
  int err = 0;
  for (uint64_t i = 0; i < n; ++i) {
    SendWr w = p.wr(opcode, i, 8192 * (i + 1) + result, 8, target);
    before[i] = value;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      w.compare_add = ~uint64_t{0} - i; // wraps
      value += w.compare_add;
    } else {
      w.compare_add = i == 2 ? ~value : value; // the third does not match
      w.swap = start * (i + 3);
      value = i == 2 ? value : w.swap;
    }
    w.flags = k.by_qp || (k.last_only && i < n - 1) ? 0 : IBV_SEND_SIGNALED;
    if (k.scattered) { // equal halves: see the README on librxe and unequal entries
      w.num_sge = 2;
      w.sge[0].length = 4;
      w.sge[1] = {w.sge[0].addr + 100, 4, w.sge[0].lkey};
    }
    s.wr[s.n++] = w;
    if (!k.list || i == n - 1) {
      err |= (*p.a.s)(s).err;
      s.n = 0;
    }
  }
  c.result(step.c_str(), err);
  Poll poll;
  poll.cq = p.a.scq.id;
  poll.want = k.last_only && !k.by_qp ? 1 : static_cast<int>(n);
  poll.wait = k.wait;
  WcList l = (*p.a.s)(poll);
  for (int i = 0; i < l.n; ++i)
    c.say(step.c_str(), "a completes %s", c.describe(l.wc[i], p.a).c_str());
  c.expect(step.c_str(), "number of completions", l.n == poll.want);
  bool good = (*p.b.s)(Peek{p.b.buf.addr + target}).value == value;
  std::vector<Range> changed;
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t at = 8192 * (i + 1) + result;
    uint64_t got = 0; // put together byte by byte: results are not aligned
    for (uint64_t j = 0; j < 8; ++j) {
      const uint64_t byte = p.a.buf.addr + at + (k.scattered && j >= 4 ? 96 + j : j);
      const uint64_t word = (*p.a.s)(Peek{byte & ~uint64_t{7}}).value;
      got |= (word >> (byte % 8 * 8) & 0xff) << (j * 8);
    }
    good = good && got == before[i];
    (*p.a.s)(Fill{p.a.buf.addr + at, 108, seed_a, at});
  }
  c.expect(step.c_str(), "values", good);
  (*p.b.s)(Fill{p.b.buf.addr + target, 8, seed_b, target});
  c.bytes(step.c_str(), p.a, seed_a, {});
  c.bytes(step.c_str(), p.b, seed_b, {});
}

void all(Case& c, int opcode) {
  for (int i = 0; i < 16; ++i) {
    auto bit = [&](int b) { return (i >> b & 1) == 1; };
    // Seven settings from four bits, some as parities: every pair meets.
    Setting k = {bit(0) ? Api::extended : Api::classic,
                 bit(1) ? Api::extended : Api::classic,
                 bit(2) ? Wait::event : Wait::spin,
                 bit(0) != bit(1),
                 bit(1) != bit(2),
                 bit(0) != bit(2),
                 bit(3)};
    run(c, i, opcode, k, targets[i % 4], results[(i / 4 + i) % 4]);
  }
}

} // namespace

void add_atomic_cases(std::vector<Test>& t) {
  t.push_back({"data.rc.fetch_add", [](Case& c) { all(c, IBV_WR_ATOMIC_FETCH_AND_ADD); }});
  t.push_back({"data.rc.cmp_swap", [](Case& c) { all(c, IBV_WR_ATOMIC_CMP_AND_SWP); }});
}

} // namespace verify
