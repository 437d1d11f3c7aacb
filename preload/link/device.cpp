// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/device.h"
#include "link/channel.h"
#include "link/service.h"
#include "memory/limits.h"
#include "observe/counters.h"
#include "observe/log.h"
#include "policy/policy.h"
#include "provider/real.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <string>
#include <sys/epoll.h>
#include <sys/mman.h>

namespace adverb::link {
namespace {

constexpr size_t message_large = 72 + 16384;
constexpr size_t message_small = 72 + 4096;
constexpr uint32_t credits_usual = 16;
constexpr uint32_t credits_least = 2;
constexpr int cq_depth = 4096;
constexpr uint32_t srq_depth = 4096;
constexpr uint64_t receive_bit = uint64_t{1} << 63;
constexpr int polls_at_once = 16; // batches; then others get the lock

std::mutex all_lock;
std::map<std::string, std::shared_ptr<Device>>* all = nullptr;

} // namespace

std::shared_ptr<Device> Device::get(ibv_device* device) {
  const std::lock_guard hold(all_lock);
  if (all == nullptr)
    all = new std::map<std::string, std::shared_ptr<Device>>;
  auto& entry = (*all)[device->name];
  if (!entry) {
    std::shared_ptr<Device> fresh(new Device(device));
    if (!fresh->open()) {
      if (observe::log_once(std::string("open ") + device->name))
        observe::log_warn("cannot open {} a second time for adverb's own use (errno {}); its peers "
                          "are treated as stock",
                          device->name, errno);
      all->erase(device->name);
      return nullptr;
    }
    entry = fresh;
  }
  return entry;
}

void Device::after_fork_child() {
  new (&all_lock) std::mutex;
  all = nullptr; // leaked: its destructors would talk to the parent's device
}

bool Device::open() {
  const provider::Inside inside;
  const auto& real = provider::real();
  budget_ = std::min<uint64_t>(policy::current().staging(), memory::memlock_left() / 4) / 2;
  message_max_ = budget_ >= (4U << 20) ? message_large : message_small;
  context_ = real.ibv_open_device(device_);
  if (context_ == nullptr)
    return false;
  own_fd(context_->cmd_fd);
  own_fd(context_->async_fd);
  pd_ = real.ibv_alloc_pd(context_);
  events_ = real.ibv_create_comp_channel(context_);
  if (pd_ == nullptr || events_ == nullptr)
    return false;
  fcntl(events_->fd, F_SETFL, fcntl(events_->fd, F_GETFL) | O_NONBLOCK);
  cq_ = real.ibv_create_cq(context_, cq_depth, nullptr, events_, 0);
  ibv_srq_init_attr attr{};
  attr.attr.max_wr = srq_depth;
  attr.attr.max_sge = 1;
  srq_ = cq_ == nullptr ? nullptr : real.ibv_create_srq(pd_, &attr);
  if (srq_ == nullptr)
    return false;
  srq_depth_ = attr.attr.max_wr;
  context_->ops.req_notify_cq(cq_, 0);
  Service::get().watch(events_->fd, EPOLLIN, [this](uint32_t) { on_event(); });
  return true;
}

bool Device::has_gid(const ibv_gid& gid) const {
  const provider::Inside inside;
  const auto& real = provider::real();
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

uint32_t Device::credits_to_give() const noexcept {
  const uint64_t used = used_.load(std::memory_order_relaxed);
  const uint64_t left = used < budget_ ? budget_ - used : 0;
  // Each credit costs a send and a receive buffer; leave most of the budget to later links.
  const uint64_t affordable = left / 4 / (2 * message_max_);
  return static_cast<uint32_t>(std::clamp<uint64_t>(affordable, credits_least, credits_usual));
}

void Device::on_event() {
  const provider::Inside inside;
  const auto& real = provider::real();
  ibv_cq* cq = nullptr;
  void* unused = nullptr;
  while (real.ibv_get_cq_event(events_, &cq, &unused) == 0)
    real.ibv_ack_cq_events(cq, 1);
  context_->ops.req_notify_cq(cq_, 0);
  drain();
}

// Waits for the lock: what arrived before the arm is announced by no further event. A turn at a
// time, because timers wait behind it.
void Device::drain() {
  const std::lock_guard hold(progress_);
  if (poll())
    Service::get().run([this] { drain(); });
}

bool Device::progress() {
  if (!progress_.try_lock())
    return false;
  const std::lock_guard hold(progress_, std::adopt_lock);
  return poll();
}

bool Device::poll() {
  const provider::Inside inside;
  std::array<ibv_wc, 16> batch;
  bool any = false;
  for (int round = 0; round < polls_at_once; ++round) {
    const int n = context_->ops.poll_cq(cq_, static_cast<int>(batch.size()), batch.data());
    for (int i = 0; i < n; ++i) {
      const ibv_wc& wc = batch[static_cast<size_t>(i)];
      std::shared_ptr<Channel> channel;
      {
        const std::lock_guard hold(channels_lock_);
        const auto it = channels_.find(wc.qp_num);
        if (it != channels_.end())
          channel = it->second.lock();
      }
      if (wc.status != IBV_WC_SUCCESS && wc.status != IBV_WC_WR_FLUSH_ERR)
        observe::log_info("{}: a companion queue pair failed: work completion status {}",
                          device_->name, static_cast<int>(wc.status));
      if ((wc.wr_id & receive_bit) == 0) {
        if (channel)
          channel->on_sent(wc.wr_id, wc.status == IBV_WC_SUCCESS);
        continue;
      }
      const auto slot = static_cast<uint32_t>(wc.wr_id);
      std::byte* memory = nullptr;
      {
        const std::lock_guard hold(slots_lock_);
        memory = slots_[slot].memory;
      }
      RxBuffer message(this, slot, {memory, wc.status == IBV_WC_SUCCESS ? wc.byte_len : 0});
      if (channel && wc.status == IBV_WC_SUCCESS)
        channel->on_received(std::move(message));
    }
    any |= n > 0;
    if (n < static_cast<int>(batch.size()))
      break;
  }
  return any;
}

void Device::post_slot(uint32_t slot) noexcept {
  const provider::Inside inside;
  ibv_sge sge{};
  {
    const std::lock_guard hold(slots_lock_);
    sge = {reinterpret_cast<uintptr_t>(slots_[slot].memory), static_cast<uint32_t>(message_max_),
           slots_[slot].lkey};
  }
  ibv_recv_wr wr{};
  wr.wr_id = receive_bit | slot;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  if (context_->ops.post_srq_recv(srq_, &wr, &bad) != 0 && observe::log_every("srq-post", 10))
    observe::log_error("{}: a receive buffer of the links is lost; fewer credits remain",
                       device_->name);
}

bool Device::add_slots(uint32_t count) {
  std::vector<uint32_t> fresh;
  {
    const std::lock_guard hold(slots_lock_);
    const uint32_t reused = std::min(count, spare_slots_);
    spare_slots_ -= reused;
    count -= reused;
    if (count == 0)
      return true;
    if (slots_.size() + count > srq_depth_)
      return false;
    const size_t bytes = count * message_max_;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      return false;
    madvise(memory, bytes, MADV_DONTFORK);
    const provider::Inside inside;
    ibv_mr* mr = provider::real().ibv_reg_mr(pd_, memory, bytes, IBV_ACCESS_LOCAL_WRITE);
    if (mr == nullptr) {
      munmap(memory, bytes);
      return false;
    }
    observe::gauge_add(observe::Gauge::pinned_bytes, static_cast<int64_t>(bytes));
    used_ += bytes;
    slabs_.push_back({static_cast<std::byte*>(memory), mr});
    for (uint32_t i = 0; i < count; ++i) {
      fresh.push_back(static_cast<uint32_t>(slots_.size()));
      slots_.push_back({static_cast<std::byte*>(memory) + i * message_max_, mr->lkey});
    }
  }
  for (const uint32_t slot : fresh)
    post_slot(slot);
  return true;
}

void Device::return_slots(uint32_t count) noexcept {
  const std::lock_guard hold(slots_lock_);
  spare_slots_ += count;
}

void Device::add(Channel* channel) {
  const std::lock_guard hold(channels_lock_);
  channels_[channel->qpn()] = channel->weak_from_this();
}

void Device::remove(const Channel* channel) {
  const std::lock_guard hold(channels_lock_);
  if (channel->qp_ != nullptr)
    channels_.erase(channel->qpn());
}

void RxBuffer::release() noexcept {
  if (device_ != nullptr)
    device_->post_slot(slot_);
  device_ = nullptr;
}

} // namespace adverb::link
