// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The progress thread: runs the send queues nobody else runs (long, blocked or delayed work),
// and does for the process what peers may not do: events, and flushing after a remote error.
#include "wire.h"

#include <algorithm>
#include <climits>
#include <csignal>
#include <ctime>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

namespace adverb::loopback {

namespace {

long futex(std::atomic<uint32_t>& word, int op, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), op, value, timeout, nullptr, 0);
}

template <size_t N, typename Visit> void take_bits(std::atomic<uint64_t> (&words)[N], Visit visit) {
  for (uint32_t i = 0; i < N; ++i) {
    if (words[i].load(std::memory_order_relaxed) == 0)
      continue;
    uint64_t bits = words[i].exchange(0);
    while (bits != 0) {
      const uint32_t bit = static_cast<uint32_t>(__builtin_ctzll(bits));
      bits &= bits - 1;
      visit(i * 64 + bit);
    }
  }
}

// A word nobody has read yet is for the object that goes, not for the next one of its number.
template <size_t N> void take_bit(std::atomic<uint64_t> (&words)[N], uint32_t number) {
  words[number / 64].fetch_and(~(uint64_t{1} << number % 64));
}

} // namespace

uint64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
}

CriticalSection::CriticalSection(Process& process, uint32_t target) {
  thread_local uint32_t hint = static_cast<uint32_t>(syscall(SYS_gettid));
  for (uint32_t i = hint;; ++i) {
    ExecRecord& record = process.slot_->exec[i % kExecRecords];
    uint64_t word = record.word.load(std::memory_order_relaxed);
    if ((word & 0xffff) == 0 &&
        record.word.compare_exchange_strong(word, word | (target + 1), std::memory_order_seq_cst)) {
      record_ = &record;
      word_ = word;
      hint = i;
      return;
    }
    if (i - hint > 4 * kExecRecords)
      sched_yield();
  }
}

CriticalSection::~CriticalSection() {
  record_->word.store(word_ + 0x10000, std::memory_order_seq_cst);
}

void Process::synchronize() {
  for (uint32_t p = 0; p < kMaxProcesses; ++p) {
    ProcessSlot& slot = fabric_->process[p];
    if (slot.busy.load() == 0)
      continue;
    const uint32_t incarnation = slot.incarnation.load();
    for (ExecRecord& record : slot.exec) {
      const uint64_t word = record.word.load(std::memory_order_seq_cst);
      const uint64_t target = word & 0xffff;
      if (target == 0 || (p != index_ && target != index_ + 1))
        continue;
      // A peer stopped (SIGSTOP) right here holds us for this long at most.
      const uint64_t give_up = now_ns() + 3000000000u;
      for (uint32_t spin = 0; record.word.load(std::memory_order_seq_cst) == word; ++spin) {
        if (spin < 1000)
          continue;
        std::this_thread::yield();
        if (p != index_ && spin % 1024 == 0 && (!alive(p, incarnation) || now_ns() > give_up))
          break;
      }
    }
  }
}

void Process::ring(uint32_t process, uint32_t attention) {
  ProcessSlot& slot = fabric_->process[process];
  slot.attention.fetch_or(attention);
  slot.bell.fetch_add(1);
  if (slot.asleep.load() != 0)
    futex(slot.bell, FUTEX_WAKE, INT_MAX, nullptr);
}

bool Process::start_thread() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([this] { progress(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  std::unique_lock lock(start_mutex_);
  started_cv_.wait(lock, [this] { return started_; });
  return true;
}

void Process::progress() {
  pthread_setname_np(pthread_self(), "loopback");
  if (pthread_mutex_lock(&slot_->life) == EOWNERDEAD)
    pthread_mutex_consistent(&slot_->life);
  slot_->busy.store(1);
  {
    std::lock_guard lock(start_mutex_);
    started_ = true;
  }
  started_cv_.notify_all();
  for (;;) {
    const uint32_t bell = slot_->bell.load();
    const uint32_t attention = slot_->attention.exchange(0);
    if (attention != 0)
      dispatch(attention);
    const uint64_t deadline = std::min(run_list(), wire_->deliver_due());
    const uint64_t now = now_ns();
    if (deadline <= now)
      continue;
    slot_->asleep.store(1);
    if (slot_->bell.load() == bell) {
      const uint64_t wait = std::min<uint64_t>(deadline - now, 1000000000u);
      const timespec timeout = {static_cast<time_t>(wait / 1000000000u),
                                static_cast<long>(wait % 1000000000u)};
      futex(slot_->bell, FUTEX_WAIT, bell, &timeout);
    }
    slot_->asleep.store(0);
  }
}

void Process::dispatch(uint32_t attention) {
  std::lock_guard lock(objects_mutex_);
  if ((attention & kLookAtCqs) != 0)
    take_bits(slot_->cq_bits, [this](uint32_t number) {
      Cq* cq = cqs_[number];
      if (cq == nullptr)
        return;
      if (cq->shared->overrun.load() == 1) {
        cq->shared->overrun.store(2);
        raise_async(cq->ex.context, IBV_EVENT_CQ_ERR, cq);
        return;
      }
      deliver_cq_event(*cq);
    });
  if ((attention & kLookAtSrqs) != 0)
    take_bits(slot_->srq_bits, [this](uint32_t number) {
      if (Srq* srq = srqs_[number]; srq != nullptr)
        raise_async(srq->srq.context, IBV_EVENT_SRQ_LIMIT_REACHED, srq);
    });
  if ((attention & kLookAtQps) == 0)
    return;
  std::vector<uint32_t> flush;
  take_bits(slot_->qp_bits, [&](uint32_t index) {
    Qp* qp = qps_[index];
    if (qp == nullptr)
      return;
    const uint32_t events = qp->slot->events.exchange(0);
    for (uint32_t type = 0; type < 31; ++type)
      if ((events & (1u << type)) != 0)
        raise_async(qp->base()->context, static_cast<ibv_event_type>(type), qp);
    if ((events & kQpFlush) != 0)
      flush.push_back(index);
  });
  // Scheduling, not flushing here: a flush waits for peers in the engine, and needs the QP's own
  // lock, which a thread waiting for objects_mutex_ may hold.
  for (uint32_t index : flush)
    schedule(*qps_[index]);
}

void Process::schedule(Qp& qp) {
  {
    std::lock_guard lock(run_mutex_);
    if (!qp.in_run_list) {
      qp.in_run_list = true;
      run_.push_back(&qp);
    }
  }
  ring(index_, kLookAtRunList);
}

// Runs every QP of the run list once. A QP that has more to do comes back with a deadline.
uint64_t Process::run_list() {
  uint64_t deadline = UINT64_MAX;
  std::unique_lock lock(run_mutex_);
  std::vector<Qp*> batch = run_;
  for (Qp* qp : batch) {
    if (std::find(run_.begin(), run_.end(), qp) == run_.end())
      continue; // destroyed meanwhile
    run_.erase(std::find(run_.begin(), run_.end(), qp));
    qp->in_run_list = false;
    running_ = qp;
    lock.unlock();
    const uint64_t next = run_send_queue(*qp);
    lock.lock();
    running_ = nullptr;
    run_idle_.notify_all();
    if (next != UINT64_MAX && !qp->in_run_list) {
      qp->in_run_list = true;
      run_.push_back(qp);
    }
    deadline = std::min(deadline, next);
  }
  if (!run_.empty() && deadline == UINT64_MAX)
    deadline = 0;
  return deadline;
}

void Process::add_qp(uint32_t index, Qp* qp) {
  std::lock_guard lock(objects_mutex_);
  qps_[index] = qp;
}

void Process::remove_qp(uint32_t index) {
  Qp* qp = nullptr;
  {
    std::lock_guard lock(objects_mutex_);
    qp = qps_[index];
    qps_[index] = nullptr;
  }
  std::unique_lock lock(run_mutex_);
  run_idle_.wait(lock, [&] { return running_ != qp; });
  if (auto at = std::find(run_.begin(), run_.end(), qp); at != run_.end())
    run_.erase(at);
}

uint32_t Process::add_cq(Cq* cq) {
  std::lock_guard lock(objects_mutex_);
  for (uint32_t i = 0; i < kMaxCqs; ++i)
    if (cqs_[i] == nullptr) {
      cqs_[i] = cq;
      return i;
    }
  return ~0u;
}

void Process::remove_cq(uint32_t number) {
  std::lock_guard lock(objects_mutex_);
  take_bit(slot_->cq_bits, number);
  cqs_[number] = nullptr;
}

uint32_t Process::add_srq(Srq* srq) {
  std::lock_guard lock(objects_mutex_);
  for (uint32_t i = 0; i < kMaxSrqs; ++i)
    if (srqs_[i] == nullptr) {
      srqs_[i] = srq;
      return i;
    }
  return ~0u;
}

void Process::remove_srq(uint32_t number) {
  std::lock_guard lock(objects_mutex_);
  take_bit(slot_->srq_bits, number);
  srqs_[number] = nullptr;
}

void Process::raise_cq(uint32_t number) {
  std::lock_guard lock(objects_mutex_);
  if (Cq* cq = cqs_[number]; cq != nullptr)
    deliver_cq_event(*cq);
}

} // namespace adverb::loopback
