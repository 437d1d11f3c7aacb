// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The agent's work: memory, posting, polling, events, and the threads that watch memory or hammer
// it.
#include "agent.h"

#include "pattern.h"

#include <arpa/inet.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>

namespace verify {
namespace {

uint8_t* ptr(uint64_t addr) {
  return reinterpret_cast<uint8_t*>(addr);
}

// For spinning: reads the clock now and then only, as that is a system call on some virtual
// machines.
class Spin {
public:
  explicit Spin(int timeout_ms) : end_(now_ms() + static_cast<uint64_t>(timeout_ms)) {}
  bool over() { return ++turns_ % 256 == 0 && now_ms() >= end_; }
  uint64_t end() const { return end_; }

private:
  uint64_t end_;
  unsigned turns_ = 0;
};

bool readable(int fd, uint64_t deadline) {
  uint64_t now = now_ms();
  pollfd p = {fd, POLLIN, 0};
  return ::poll(&p, 1, deadline > now ? static_cast<int>(deadline - now) : 0) > 0;
}

} // namespace

Outcome Agent::exec(const Fill& c) {
  fill(ptr(c.addr), c.size, c.seed, c.from);
  return {0, 0};
}

namespace {

Verdict check_once(const Check& c) {
  Verdict v;
  auto look = [&](uint64_t off, uint64_t size, uint64_t seed, uint64_t from) {
    uint64_t first = 0, bad = count_wrong(ptr(c.addr + off), size, seed, from, &first);
    if (bad && !v.bad)
      v.first = off + first;
    v.bad += bad;
  };
  uint64_t at = 0;
  for (int i = 0; i < c.n; ++i) { // ranges come in rising order; what lies between is background
    const Range& r = c.range[i];
    look(at, r.off - at, c.seed, c.from + at);
    look(r.off, r.size, r.seed, r.from);
    at = r.off + r.size;
  }
  look(at, c.size - at, c.seed, c.from + at);
  return v;
}

} // namespace

Verdict Agent::exec(const Check& c) {
  const uint64_t end = now_ms() + static_cast<uint64_t>(c.timeout_ms);
  Verdict v = check_once(c);
  while (v.bad && now_ms() < end)
    v = check_once(c);
  return v;
}

Number Agent::exec(const Peek& c) {
  return {__atomic_load_n(reinterpret_cast<uint64_t*>(c.addr), __ATOMIC_ACQUIRE)};
}

Outcome Agent::exec(const Poke& c) {
  __atomic_store_n(reinterpret_cast<uint64_t*>(c.addr), c.value, __ATOMIC_RELEASE);
  return {0, 0};
}

Verdict Agent::exec(const AwaitByte& c) {
  Spin spin(c.timeout_ms);
  while (__atomic_load_n(ptr(c.watch), __ATOMIC_ACQUIRE) != c.value)
    if (spin.over())
      return {~uint64_t{0}, 0};
  Verdict v;
  v.bad = count_wrong(ptr(c.addr), c.size, c.seed, c.from, &v.first);
  return v;
}

PostResult Agent::post_classic(const Qp& q, const PostSend& c) {
  ibv_send_wr wr[max_wrs] = {}, *bad = nullptr;
  for (int i = 0; i < c.n; ++i) {
    const SendWr& s = c.wr[i];
    ibv_send_wr& w = wr[i];
    w.wr_id = s.wr_id;
    w.next = i + 1 < c.n ? &wr[i + 1] : nullptr;
    w.sg_list = const_cast<ibv_sge*>(s.sge);
    w.num_sge = s.num_sge;
    w.opcode = static_cast<ibv_wr_opcode>(s.opcode);
    w.send_flags = s.flags;
    w.imm_data = htonl(s.imm);
    if (q.type == IBV_QPT_UD) {
      w.wr.ud = {s.ah < 0 ? nullptr : ahs_.at(static_cast<size_t>(s.ah)), s.remote_qpn,
                 s.remote_qkey};
    } else if (s.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || s.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      w.wr.atomic = {s.remote_addr, s.compare_add, s.swap, s.rkey};
    } else {
      w.wr.rdma = {s.remote_addr, s.rkey};
    }
  }
  int err = ibv_post_send(q.qp, wr, &bad);
  return {err, err && bad >= wr && bad < wr + c.n ? static_cast<int>(bad - wr) : -1};
}

PostResult Agent::post_extended(const Qp& q, const PostSend& c) {
  ibv_qp_ex* x = q.ex;
  ibv_wr_start(x);
  for (int i = 0; i < c.n; ++i) {
    const SendWr& s = c.wr[i];
    x->wr_id = s.wr_id;
    x->wr_flags = s.flags; // with IBV_SEND_INLINE: librxe's inline setters forget it
    switch (s.opcode) {
    case IBV_WR_RDMA_WRITE:
      ibv_wr_rdma_write(x, s.rkey, s.remote_addr);
      break;
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      ibv_wr_rdma_write_imm(x, s.rkey, s.remote_addr, htonl(s.imm));
      break;
    case IBV_WR_RDMA_READ:
      ibv_wr_rdma_read(x, s.rkey, s.remote_addr);
      break;
    case IBV_WR_SEND:
      ibv_wr_send(x);
      break;
    case IBV_WR_SEND_WITH_IMM:
      ibv_wr_send_imm(x, htonl(s.imm));
      break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      ibv_wr_atomic_cmp_swp(x, s.rkey, s.remote_addr, s.compare_add, s.swap);
      break;
    default:
      ibv_wr_atomic_fetch_add(x, s.rkey, s.remote_addr, s.compare_add);
    }
    if (q.type == IBV_QPT_UD)
      ibv_wr_set_ud_addr(x, ahs_.at(static_cast<size_t>(s.ah)), s.remote_qpn, s.remote_qkey);
    if (s.flags & IBV_SEND_INLINE) {
      ibv_data_buf bufs[max_sges];
      for (int j = 0; j < s.num_sge; ++j)
        bufs[j] = {ptr(s.sge[j].addr), s.sge[j].length};
      if (s.num_sge == 1)
        ibv_wr_set_inline_data(x, bufs[0].addr, bufs[0].length);
      else
        ibv_wr_set_inline_data_list(x, static_cast<size_t>(s.num_sge), bufs);
    } else if (s.num_sge == 1) {
      ibv_wr_set_sge(x, s.sge[0].lkey, s.sge[0].addr, s.sge[0].length);
    } else {
      ibv_wr_set_sge_list(x, static_cast<size_t>(s.num_sge), s.sge);
    }
  }
  return {ibv_wr_complete(x), -1};
}

PostResult Agent::exec(const PostSend& c) {
  const Qp& q = qps_.at(static_cast<size_t>(c.qp));
  return c.api == Api::extended && q.ex ? post_extended(q, c) : post_classic(q, c);
}

PostResult Agent::exec(const PostRecv& c) {
  ibv_recv_wr wr[max_wrs] = {}, *bad = nullptr;
  for (int i = 0; i < c.n; ++i)
    wr[i] = {c.wr[i].wr_id, i + 1 < c.n ? &wr[i + 1] : nullptr, const_cast<ibv_sge*>(c.wr[i].sge),
             c.wr[i].num_sge};
  int err = c.srq >= 0 ? ibv_post_srq_recv(srqs_.at(static_cast<size_t>(c.srq)), wr, &bad)
                       : ibv_post_recv(qps_.at(static_cast<size_t>(c.qp)).qp, wr, &bad);
  return {err, err && bad >= wr && bad < wr + c.n ? static_cast<int>(bad - wr) : -1};
}

int Agent::drain_classic(const Cq& q, int room, Wc* out) {
  ibv_wc wc[16];
  int n = ibv_poll_cq(q.cq, room < 16 ? room : 16, wc);
  for (int i = 0; i < n; ++i)
    out[i] = {wc[i].wr_id,
              wc[i].status,
              wc[i].opcode,
              wc[i].byte_len,
              wc[i].wc_flags,
              ntohl(wc[i].imm_data),
              qp_by_number(wc[i].qp_num),
              wc[i].src_qp};
  return n;
}

int Agent::drain_extended(const Cq& q, int room, int certain, Wc* out) {
  ibv_poll_cq_attr attr = {};
  if (ibv_start_poll(q.ex, &attr))
    return 0;
  if (arm_within_)
    ibv_req_notify_cq(q.cq, 0);
  int n = 0;
  do {
    Wc& w = out[n++];
    w = {q.ex->wr_id, q.ex->status, 0, 0, 0, 0, qp_by_number(ibv_wc_read_qp_num(q.ex)), 0};
    if (w.status == IBV_WC_SUCCESS) { // nothing else is defined for a failed request
      w.opcode = ibv_wc_read_opcode(q.ex);
      w.byte_len = ibv_wc_read_byte_len(q.ex);
      w.flags = ibv_wc_read_wc_flags(q.ex);
      w.imm = w.flags & IBV_WC_WITH_IMM ? ntohl(ibv_wc_read_imm_data(q.ex)) : 0;
      w.src_qp = ibv_wc_read_src_qp(q.ex);
    }
  } while (n < certain && n < room && ibv_next_poll(q.ex) == 0);
  ibv_end_poll(q.ex);
  return n;
}

int Agent::drain(const Cq& q, int room, int certain, Wc* out) {
  return room <= 0 ? 0 : q.ex ? drain_extended(q, room, certain, out) : drain_classic(q, room, out);
}

WcList Agent::exec(const Poll& c) {
  const Cq& q = cqs_.at(static_cast<size_t>(c.cq));
  arm_within_ = c.arm_within;
  Spin spin(c.timeout_ms);
  WcList list;
  auto take = [&] {
    int n;
    while (list.n < (c.one ? c.want : max_wcs) &&
           (n = drain(q, c.one ? 1 : max_wcs - list.n, c.certain - list.n, list.wc + list.n)) > 0)
      list.n += n;
  };
  for (take(); list.n < c.want && !spin.over(); take()) {
    if (c.wait != Wait::event || !q.channel)
      continue;
    if (ibv_req_notify_cq(q.cq, 0))
      break;
    take(); // what came before the arming raises no event
    if (list.n >= c.want || !readable(q.channel->fd, spin.end()))
      break;
    ibv_cq* from = nullptr;
    void* cookie = nullptr;
    if (ibv_get_cq_event(q.channel, &from, &cookie) == 0) {
      ibv_ack_cq_events(from, 1);
      ++list.wakeups;
    }
  }
  return list;
}

Outcome Agent::exec(const ArmCq& c) {
  return {ibv_req_notify_cq(cqs_.at(static_cast<size_t>(c.cq)).cq, c.solicited), c.cq};
}

Event Agent::exec(const AwaitCqEvent& c) {
  const Cq& q = cqs_.at(static_cast<size_t>(c.cq));
  if (!readable(q.channel->fd, now_ms() + static_cast<uint64_t>(c.timeout_ms)))
    return {0, 0, 0};
  ibv_cq* from = nullptr;
  void* cookie = nullptr;
  if (ibv_get_cq_event(q.channel, &from, &cookie))
    return {0, 0, 0};
  ibv_ack_cq_events(from, 1);
  return {1, 0, from == q.cq};
}

Event Agent::exec(const NextEvent& c) {
  const uint64_t end = now_ms() + static_cast<uint64_t>(c.timeout_ms);
  ibv_async_event e;
  while (readable(context_->async_fd, end)) {
    if (ibv_get_async_event(context_, &e))
      continue; // an interposer may have taken the event for itself
    int own = 0;
    for (const Qp& q : qps_)
      own |= q.qp && e.element.qp == q.qp;
    for (const Cq& q : cqs_)
      own |= q.cq && e.element.cq == q.cq;
    for (ibv_srq* s : srqs_)
      own |= s && e.element.srq == s;
    ibv_ack_async_event(&e);
    return {1, e.event_type, own};
  }
  return {0, 0, 0};
}

Outcome Agent::exec(const StartSpin& c) {
  spin_stop_ = false;
  spin_ = {};
  spinner_ = std::thread([this, word = reinterpret_cast<uint64_t*>(c.addr)] {
    uint64_t last = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    while (!spin_stop_.load(std::memory_order_relaxed)) {
      uint64_t v = __atomic_load_n(word, __ATOMIC_ACQUIRE);
      auto lo = static_cast<uint32_t>(v), hi = static_cast<uint32_t>(v >> 32);
      ++spin_.seen;
      spin_.distinct += v != last;
      spin_.torn += hi != ~lo;
      spin_.backward += lo < static_cast<uint32_t>(last);
      last = v;
    }
  });
  return {0, 0};
}

SpinResult Agent::exec(const StopSpin&) {
  spin_stop_ = true;
  if (spinner_.joinable())
    spinner_.join();
  return spin_;
}

Verdict Agent::exec(const Storm& c) {
  std::mutex poll_lock; // polling and accounting are one step, or order could not be judged
  std::atomic<int> done[16] = {}, wrong{0};
  const uint64_t end = now_ms() + 60000;
  auto reap = [&] {
    std::lock_guard<std::mutex> hold(poll_lock);
    Wc wc[16];
    int n = drain(cqs_[static_cast<size_t>(c.cq)], 16, 1, wc);
    for (int i = 0; i < n; ++i) {
      auto t = static_cast<size_t>(wc[i].wr_id >> 32);
      bool good = t < 16 && wc[i].status == IBV_WC_SUCCESS && wc[i].qp == c.qp[t] &&
                  static_cast<int>(wc[i].wr_id & 0xffffffff) == done[t];
      wrong += !good;
      if (t < 16)
        ++done[t];
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < c.threads; ++t)
    threads.emplace_back([&, t] {
      const auto slot = static_cast<size_t>(t);
      ibv_qp* qp = qps_[static_cast<size_t>(c.qp[t])].qp;
      for (int posted = 0; done[slot] < c.ops && now_ms() < end;) {
        for (; posted < c.ops && posted - done[slot] < 16; ++posted) {
          uint64_t off = static_cast<uint64_t>(t) * c.size;
          ibv_sge sge = {c.local + off, c.size, c.lkey};
          ibv_send_wr wr = {}, *bad;
          wr.wr_id = static_cast<uint64_t>(t) << 32 | static_cast<uint32_t>(posted);
          wr.sg_list = &sge, wr.num_sge = 1;
          wr.opcode = IBV_WR_RDMA_WRITE, wr.send_flags = IBV_SEND_SIGNALED;
          wr.wr.rdma = {c.remote + off, c.rkey};
          if (ibv_post_send(qp, &wr, &bad))
            break;
        }
        reap();
      }
    });
  for (auto& t : threads)
    t.join();
  Verdict v;
  v.bad = static_cast<uint64_t>(wrong);
  for (int t = 0; t < c.threads; ++t)
    v.bad += done[t] != c.ops;
  return v;
}

} // namespace verify
