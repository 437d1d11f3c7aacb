// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the program posts: plain lists, windows to bind, extended requests, receives.
#include "memory/copy.h"
#include "model/behind_staged.h"
#include "model/qp.h"
#include "model/srq.h"
#include "observe/counters.h"
#include "observe/log.h"
#include "provider/ops.h"
#include "world/no_cancel.h"
#include "world/world.h"

#include <algorithm>
#include <cerrno>
#include <span>

namespace adverb::model {

using observe::Counter;

// Issues what was appended from `from` on; posts of one call share a doorbell where they go one
// way.
Queue::Refused Qp::issue(uint64_t from, bool whole) {
  const auto refused = send_.turn(from, whole);
  if (refused.why == 0 && !send_.all_issued())
    world().counters.count(Counter::posts_queued, std::min(send_.unissued(), ring_.tail() - from));
  return refused;
}

// Nothing on the way of what passes through throws. Where this is long it is the last call, so that
// the common case has little to keep.
int Qp::post_send(ibv_send_wr* list, ibv_send_wr** bad) {
  if (!lock_.try_lock()) [[unlikely]]
    return post_contended(list, bad);
  switch (const int rc = passthrough_.post_plain<false>(list, bad); rc) {
  [[likely]] case 0:
    return lock_.unlock_and(0);
  case PassthroughSends::plain_but_unpinned:
    return post_unpinned(list, bad);
  case PassthroughSends::plain_but_for_key:
    return post_leased(list, bad);
  case PassthroughSends::not_plain:
    return post_locked(list, bad);
  default:
    return lock_.unlock_and(rc);
  }
}

// Has got the lock, and lets it go, as the next.
int Qp::post_unpinned(ibv_send_wr* list, ibv_send_wr** bad) {
  registration::SendSources::Copy copy{};
  int rc = passthrough_.post_unpinned(list, bad, copy);
  if (rc == PassthroughSends::copied_first) [[likely]] {
    lock_.unlock();
    const bool copied = memory::read(copy.to, copy.from, copy.bytes);
    lock_.lock();
    rc = passthrough_.post_copied(list, bad, copy, copied);
  }
  if (rc == PassthroughSends::not_plain) [[unlikely]]
    return post_locked(list, bad);
  return lock_.unlock_and(rc);
}

// The same.
int Qp::post_leased(ibv_send_wr* list, ibv_send_wr** bad) {
  registration::SendSources::Copy copy{};
  int rc = passthrough_.post_leased(list, bad, copy);
  if (rc == PassthroughSends::copied_first) {
    lock_.unlock();
    const bool copied = memory::read(copy.to, copy.from, copy.bytes);
    lock_.lock();
    rc = passthrough_.post_leased_copied(list, bad, copy, copied);
  }
  if (rc == PassthroughSends::not_plain)
    return post_locked(list, bad);
  return lock_.unlock_and(rc);
}

int Qp::post_contended(ibv_send_wr* list, ibv_send_wr** bad) {
  lock_.lock();
  return post_locked(list, bad);
}

int Qp::post_locked(ibv_send_wr* list, ibv_send_wr** bad) {
  const auto post_passthrough = [&](bool brought_in) {
    return passthrough_.open() || open_passthrough() ? passthrough_.post(list, bad, brought_in)
                                                     : int{PassthroughSends::not_passthrough};
  };
  if (list != nullptr && context_->regions().has_virtual())
    bring_inline_in(list);
  int rc = passthrough_.post_plain<true>(list, bad);
  if (rc == PassthroughSends::plain_but_for_key && steering::is_inline(*list)) {
    registration::SendSources::Copy none{}; // its bytes are read as it is posted
    rc = passthrough_.post_leased(list, bad, none);
  }
  if (rc == PassthroughSends::not_plain || rc == PassthroughSends::plain_but_unpinned ||
      rc == PassthroughSends::plain_but_for_key)
    rc = post_passthrough(false);
  if (rc == PassthroughSends::pages_first || rc == PassthroughSends::not_passthrough) [[unlikely]] {
    bring_in(list);
    if (rc == PassthroughSends::pages_first)
      rc = post_passthrough(true);
    if (rc == PassthroughSends::not_passthrough)
      return post_by_ring(list, bad);
  }
  lock_.unlock();
  return rc;
}

// With windows of type 1 the provider gets lists in pieces, cut by writing to them.
bool Qp::open_passthrough() {
  return state_ >= IBV_QPS_RTS && !binds_ && send_.open_passthrough();
}

// What is slow to come keeps nobody waiting but who posts it.
void Qp::bring_in(const ibv_send_wr* list) {
  lock_.unlock();
  for (; list != nullptr; list = list->next)
    if (!steering::is_inline(*list) && list->num_sge > 0 &&
        static_cast<uint32_t>(list->num_sge) <= ring_.sges())
      context_->regions().bring_in(pd_->verbs, {list->sg_list, static_cast<size_t>(list->num_sge)});
  lock_.lock();
}

// The same of inline data, which may lie anywhere: whoever posts copies it.
void Qp::bring_inline_in(const ibv_send_wr* list) noexcept {
  while (list != nullptr && !steering::is_inline(*list))
    list = list->next;
  if (list == nullptr) [[likely]]
    return;
  lock_.unlock();
  for (; list != nullptr; list = list->next) {
    if (!steering::is_inline(*list) || list->num_sge <= 0 ||
        static_cast<uint32_t>(list->num_sge) > ring_.sges())
      continue;
    for (const ibv_sge& one : std::span(list->sg_list, static_cast<size_t>(list->num_sge)))
      if (one.length <= ring_.inline_most())
        memory::bring_in(reinterpret_cast<const void*>(one.addr), one.length);
  }
  lock_.lock();
}

// The same.
int Qp::post_by_ring(ibv_send_wr* list, ibv_send_wr** bad) {
  const std::lock_guard hold(lock_, std::adopt_lock);
  if (state_ < IBV_QPS_RTS) {
    *bad = list;
    return EINVAL;
  }
  int rc = 0;
  uint64_t from = ring_.tail();
  ibv_send_wr* rest = list;
  auto refused = send_.post_direct(rest);
  rc = refused.why;
  if (rest != nullptr && rc == 0) [[unlikely]] {
    list = rest;
    from = ring_.tail();
    for (; rest != nullptr; rest = rest->next)
      if (rc = send_.append(*rest); rc != 0)
        break;
    if (ring_.tail() != from)
      refused = issue(from);
  }
  if (refused.why != 0) {
    rc = refused.why;
    rest = list;
    for (uint64_t seq = from; seq < refused.seq; ++seq)
      rest = rest->next;
  }
  if (rc != 0)
    *bad = rest;
  return rc;
}

// Windows of type 1 are bound by a call of their own, which posts a request like others and tells
// the window's next key at once. One that has to wait in the queue is told it by the rule that
// providers follow.
int Qp::bind_mw(ibv_mw* mw, ibv_mw_bind* bind) {
  const std::lock_guard hold(lock_);
  if (state_ < IBV_QPS_RTS)
    return EINVAL;
  const uint32_t before = mw->rkey;
  const uint64_t from = ring_.tail();
  ibv_send_wr wr{};
  wr.wr_id = bind->wr_id;
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = bind->send_flags;
  wr.bind_mw = {mw, ibv_inc_rkey(before), bind->bind_info};
  if (const int rc = send_.append(wr); rc != 0)
    return rc;
  binds_ = true;
  mw->rkey = wr.bind_mw.rkey;
  const int why = issue(from).why;
  if (why != 0)
    mw->rkey = before;
  return why;
}

int Qp::post_bind(const ibv_send_wr& wr) {
  ibv_mw* mw = wr.bind_mw.mw;
  const uint32_t told = mw->rkey; // of a later one, perhaps
  mw->rkey = (wr.bind_mw.rkey & ~0xFFU) | ((wr.bind_mw.rkey - 1) & 0xFFU);
  ibv_mw_bind bind{wr.wr_id, wr.send_flags, wr.bind_mw.bind_info};
  const int rc = world().provider.ops(qp_->context).bind_mw(qp_, mw, &bind);
  if (rc == 0 && mw->rkey != wr.bind_mw.rkey && world().log.every("bind-key", 10))
    world().log.error("a memory window was bound under key {:#x}, where {:#x} was expected",
                      mw->rkey, wr.bind_mw.rkey);
  if (rc != 0 || told != wr.bind_mw.rkey)
    mw->rkey = told;
  return rc;
}

// A list with such requests in it: what is between them goes as lists.
int Qp::post_with_binds(ibv_send_wr* list, ibv_send_wr** bad) {
  const auto is_bind = [](const ibv_send_wr& wr) {
    return wr.opcode == IBV_WR_BIND_MW && wr.bind_mw.mw->type == IBV_MW_TYPE_1;
  };
  while (list != nullptr) {
    ibv_send_wr* last = list;
    while (last->next != nullptr && !is_bind(*list) && !is_bind(*last->next))
      last = last->next;
    ibv_send_wr* rest = std::exchange(last->next, nullptr);
    *bad = list;
    const int rc = is_bind(*list) ? post_bind(*list)
                                  : world().provider.ops(qp_->context).post_send(qp_, list, bad);
    last->next = rest;
    if (rc != 0)
      return rc;
    list = rest;
  }
  return 0;
}

int Qp::post_recv(ibv_recv_wr* wr, ibv_recv_wr** bad) {
  if (!receive_) {
    *bad = wr;
    return EINVAL;
  }
  const int rc = post_receives(*receive_, lock_, wr, bad, [this](ibv_recv_wr* mine) {
    ibv_recv_wr* unused = nullptr;
    return world().provider.ops(qp_->context).post_recv(qp_, mine, &unused);
  });
  if (receipts_.look_again()) [[unlikely]]
    recv_cq_->request_drain_in_time();
  return rc;
}

void Qp::begin() {
  building_.lock();
  build_error_ = state_ < IBV_QPS_RTS ? EINVAL : 0;
}

Qp::Built& Qp::build() {
  if (built_ == build_list_.size())
    build_list_.emplace_back();
  Built& fresh = build_list_[built_++];
  fresh.wr = {};
  fresh.sges.clear();
  fresh.inlined.clear();
  return fresh;
}

int Qp::commit() {
  for (const Built& b : std::span(build_list_).first(built_))
    context_->regions().bring_in(pd_->verbs, b.sges);
  std::unique_lock hold(lock_);
  const uint64_t from = ring_.tail();
  int rc = build_error_;
  if (rc == 0) {
    for (Built& b : std::span(build_list_).first(built_)) {
      ibv_sge whole{reinterpret_cast<uintptr_t>(b.inlined.data()),
                    static_cast<uint32_t>(b.inlined.size()), 0};
      const bool inlined = (b.wr.send_flags & IBV_SEND_INLINE) != 0 && !b.inlined.empty();
      b.wr.sg_list = inlined ? &whole : b.sges.data();
      b.wr.num_sge = inlined ? 1 : static_cast<int>(b.sges.size());
      if ((rc = send_.append(b.wr)) != 0)
        break;
    }
  }
  if (rc != 0)
    ring_.truncate(from);
  else if (built_ != 0)
    rc = issue(from, true).why;
  built_ = 0;
  hold.unlock();
  building_.unlock();
  return rc;
}

void Qp::abort() {
  built_ = 0;
  building_.unlock();
}

// Not for passthrough, where each nanosecond counts.
int Qp::post_send_to_provider(ibv_send_wr* list, ibv_send_wr** bad) {
  const NoCancel whole;
  const provider::Inside inside;
  if (binds_) [[unlikely]]
    return post_with_binds(list, bad);
  return post_send_(qp_, list, bad);
}

} // namespace adverb::model
