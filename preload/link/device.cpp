// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/device.h"
#include "memory/limits.h"
#include "memory/own_fds.h"
#include "world/no_cancel.h"
#include "world/world.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <optional>
#include <sched.h>
#include <string>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <utility>

namespace adverb::link {
namespace {

constexpr uint32_t credits_least = 2;
constexpr int cq_depth = 4096;
constexpr uint64_t receive_bit = uint64_t{1} << 63;
constexpr int pool_shift = 32;    // below it, the slot
constexpr int polls_at_once = 16; // batches; then others get the lock
// Whether the program still polls is looked at after an eighth of the time it has for, within
// these.
constexpr std::chrono::microseconds polls_watched{100};
constexpr std::chrono::microseconds polls_watched_most{1000};
constexpr uint32_t enough_by_polls = 64; // times in a row that nobody else found messages
// A stream of messages, which come a round trip after each other, is looked for without system
// calls; then the processor is offered to others, each few microseconds.
constexpr std::chrono::microseconds offered_after{20};
constexpr int pauses = 4; // a tenth of a microsecond, or two
constexpr int pauses_offered = 20 * pauses;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}
int processors() {
  cpu_set_t usable;
  return sched_getaffinity(0, sizeof usable, &usable) == 0 ? CPU_COUNT(&usable) : 1;
}

} // namespace

Device::Device(World& world, ibv_device* device)
    : world_(world), device_(device), spin_(world.policy().link().spin, processors()) {}

std::shared_ptr<Device> Device::open(World& world, ibv_device* device) {
  std::shared_ptr<Device> fresh(new Device(world, device));
  const int rc = fresh->open();
  if (rc == 0)
    return fresh;
  if (world.log.once(std::string("open ") + device->name))
    world.log.warn("cannot open {} a second time for adverb's own use (errno {}); its peers are "
                   "treated as stock",
                   device->name, rc);
  errno = rc;
  return nullptr;
}

std::shared_ptr<Device> Devices::get(ibv_device* device) {
  const std::lock_guard hold(lock_);
  auto& entry = all_[device->name];
  if (!entry)
    entry = Device::open(world_, device);
  return entry;
}

int Device::open() {
  const provider::Inside inside;
  const auto& real = world_.provider.real();
  budget_ = std::min<uint64_t>(world_.policy().staging(), memory::memlock_left() / 4) / 2;
  context_ = real.ibv_open_device(device_);
  if (context_ == nullptr)
    return provider::failure();
  // libibverbs goes by these numbers alone. The program's own files get those that it would have.
  context_->cmd_fd = own_fds::raised(context_->cmd_fd);
  context_->async_fd = own_fds::raised(context_->async_fd);
  world_.service.own_fd(context_->cmd_fd);
  world_.service.own_fd(context_->async_fd);
  pd_ = real.ibv_alloc_pd(context_);
  if (pd_ == nullptr)
    return provider::failure();
  events_ = real.ibv_create_comp_channel(context_);
  if (events_ == nullptr)
    return provider::failure();
  events_->fd = own_fds::raised(events_->fd);
  fcntl(events_->fd, F_SETFL, fcntl(events_->fd, F_GETFL) | O_NONBLOCK);
  cq_ = real.ibv_create_cq(context_, cq_depth, nullptr, events_, 0);
  if (cq_ == nullptr)
    return provider::failure();
  context_->ops.req_notify_cq(cq_, 0);
  world_.service.watch(events_->fd, EPOLLIN, [this](uint32_t) { on_event(); });
  return 0;
}

bool Device::has_gid(const ibv_gid& gid) const {
  const provider::Inside inside;
  const auto& real = world_.provider.real();
  for (uint8_t port = 1;; ++port) {
    ibv_port_attr attr{};
    if (real.ibv_query_port(context_, port, reinterpret_cast<_compat_ibv_port_attr*>(&attr)) != 0)
      return false; // no such port
    ibv_gid one{};
    for (int i = 0; i < attr.gid_tbl_len; ++i)
      if (real.ibv_query_gid(context_, port, i, &one) == 0 &&
          memcmp(one.raw, gid.raw, sizeof gid.raw) == 0)
        return true;
  }
}

uint32_t Device::credits_to_give(const Protocol::Size& size) const noexcept {
  // Each credit costs a send and a receive buffer; leave most of the budget to later links.
  const uint64_t affordable = (left() / 4 + size.message) / (2 * size.message); // to the nearest
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(affordable, credits_least, std::max(size.depth, credits_least)));
}

void Device::on_event() {
  assert(world_.service.on_thread());
  const provider::Inside inside;
  const auto& real = world_.provider.real();
  ibv_cq* cq = nullptr;
  void* unused = nullptr;
  while (real.ibv_get_cq_event(events_, &cq, &unused) == 0)
    real.ibv_ack_cq_events(cq, 1);
  last_message_ = world_.clock.now();
  world_.service.poll(*this);
}

// Takes messages, until there have been none for as long as it may look for them, or the program
// takes them all itself and leaves no jobs; then no more until there is an event. Where the program
// has just polled it leaves the lock to it.
bool Device::look(bool after_job) {
  assert(world_.service.on_thread());
  const auto began = world_.clock.now();
  if (!std::exchange(looking_, true)) {
    looking_since_ = began;
    left_to_polls_.store(false);
  }
  const uint32_t looks_now = looks();
  const bool polled = std::exchange(looks_before_, looks_now) != looks_now;
  const bool any = !polled && take();
  const auto now = any ? began : world_.clock.now();
  const uint32_t by_polls = found_by_polls_.load(std::memory_order_relaxed);
  const uint32_t more_by_polls = by_polls - std::exchange(found_by_polls_before_, by_polls);
  if (any || more_by_polls != 0)
    last_message_ = now;
  if (after_job)
    last_job_ = now;
  found_by_polls_alone_ = any ? 0 : found_by_polls_alone_ + more_by_polls;
  if (any)
    return true;
  spin_.round(began, now);
  if (polled && found_by_polls_alone_ >= enough_by_polls && now - last_job_ >= spin_.allowed(now)) {
    spin_.spent(now - std::max(last_job_, looking_since_), now);
    looking_ = false;
    left_at_ = now;
    left_to_polls_.store(true);
    watch_polls();
    return false;
  }
  if (now - last_message_ >= spin_.allowed(now)) {
    spin_.spent(now - std::max(last_message_, looking_since_), now);
    looking_ = false;
    return arm();
  }
  // The next look shall tell, too, whether the program polls.
  const bool offers = now - std::max(last_message_, looking_since_) >= offered_after;
  for (int i = 0; i < (offers ? pauses_offered : pauses); ++i)
    relax();
  if (offers)
    sched_yield();
  spin_.round(now, world_.clock.now());
  return true;
}

// From here on messages come with an event, but for those that are there. True: there were some.
bool Device::arm() {
  const provider::Inside inside;
  context_->ops.req_notify_cq(cq_, 0);
  const std::lock_guard hold(lock_);
  return poll();
}

// While somebody polls, an event for each message would only wake this thread in vain.
void Device::watch_polls() {
  assert(world_.service.on_thread());
  if (std::exchange(watching_polls_, true))
    return;
  const auto due = std::clamp<std::chrono::nanoseconds>((world_.clock.now() - left_at_) / 8,
                                                        polls_watched, polls_watched_most);
  world_.service.after(due, [this, looks_before = looks()] {
    watching_polls_ = false;
    if (!left_to_polls_.load())
      return;
    if (looks() != looks_before)
      return watch_polls();
    if (left_to_polls_.exchange(false))
      world_.service.poll(*this);
  });
}

void Device::rest() {
  if (!left_to_polls_.load(std::memory_order_relaxed) || !left_to_polls_.exchange(false))
    return;
  // Not here: who is about to sleep waits for nobody.
  world_.service.run([this] {
    if (arm())
      world_.service.poll(*this);
  });
}

bool Device::progress() {
  const bool any = take();
  if (any)
    found_by_polls_.fetch_add(1, std::memory_order_relaxed);
  return any;
}

bool Device::take() {
  if (!lock_.try_lock())
    return false;
  const std::lock_guard hold(lock_, std::adopt_lock);
  return poll();
}

bool Device::poll() {
  assert(lock_.held());
  const provider::Inside inside;
  std::array<ibv_wc, 16> batch;
  bool any = false;
  for (int round = 0; round < polls_at_once; ++round) {
    const int n = context_->ops.poll_cq(cq_, static_cast<int>(batch.size()), batch.data());
    std::optional<NoCancel> whole; // a poll of the program's may be who serves them
    if (n > 0)
      whole.emplace();
    for (int i = 0; i < n; ++i) {
      const ibv_wc& wc = batch[static_cast<size_t>(i)];
      const auto qp = find(wc.qp_num);
      // Of a peer that has gone the program's own queue pair tells, by its timers; of anything else
      // the program hears no more than that a request was refused.
      if (wc.status == IBV_WC_RETRY_EXC_ERR)
        world_.log.info("{}: a companion queue pair had no answer", device_->name);
      else if (wc.status != IBV_WC_SUCCESS && wc.status != IBV_WC_WR_FLUSH_ERR &&
               world_.log.every("companion-failed", 1))
        world_.log.warn("{}: a companion queue pair failed with work completion status {}; "
                        "requests that it carried complete as if the peer had refused them",
                        device_->name, static_cast<int>(wc.status));
      if ((wc.wr_id & receive_bit) == 0) {
        if (qp)
          qp->on_sent(wc.wr_id, wc.status == IBV_WC_SUCCESS);
        continue;
      }
      auto& pool = pool_at_[(wc.wr_id & ~receive_bit) >> pool_shift];
      RxBuffer message = pool.load(std::memory_order_acquire)
                             ->received(static_cast<uint32_t>(wc.wr_id),
                                        wc.status == IBV_WC_SUCCESS ? wc.byte_len : 0);
      if (qp && wc.status == IBV_WC_SUCCESS)
        qp->on_received(std::move(message));
    }
    if (n > 0)
      world_.counters.count(observe::Counter::link_completions, static_cast<uint64_t>(n));
    any |= n > 0;
    if (n < static_cast<int>(batch.size()))
      break;
  }
  return any;
}

ReceivePool* Device::receive_pool(size_t message_bytes) {
  const std::lock_guard hold(pools_lock_);
  for (const auto& pool : pools_)
    if (pool->message_bytes() == message_bytes)
      return pool.get();
  const size_t index = pools_.size();
  if (index == pools_max) {
    errno = ENOMEM;
    return nullptr;
  }
  auto pool = ReceivePool::make(world_, context_, pd_, message_bytes,
                                receive_bit | uint64_t{index} << pool_shift, used_);
  if (!pool)
    return nullptr;
  pool_at_[index].store(pool.get(), std::memory_order_release);
  pools_.push_back(std::move(pool));
  return pools_.back().get();
}

void Device::pinned(uint64_t bytes) noexcept {
  used_ += bytes;
  world_.counters.gauge_add(observe::Gauge::pinned_bytes, static_cast<int64_t>(bytes));
}

void Device::unpinned(uint64_t bytes) noexcept {
  used_ -= bytes;
  world_.counters.gauge_add(observe::Gauge::pinned_bytes, -static_cast<int64_t>(bytes));
}

void Device::add(uint32_t qpn, std::weak_ptr<DeviceQp> qp) {
  const std::lock_guard hold(qps_lock_);
  qps_[qpn] = std::move(qp);
}

void Device::remove(uint32_t qpn) {
  const std::lock_guard hold(qps_lock_);
  qps_.erase(qpn);
}

std::shared_ptr<DeviceQp> Device::find(uint32_t qpn) {
  const std::lock_guard hold(qps_lock_);
  const auto it = qps_.find(qpn);
  return it == qps_.end() ? nullptr : it->second.lock();
}

} // namespace adverb::link
