// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/rc_companion.h"
#include "link/receive_pool.h"
#include "memory/own.h"
#include "world/no_cancel.h"
#include "world/world.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>

namespace adverb::link {
namespace {

constexpr uint32_t report_every = 8;
constexpr uint32_t timeout_most = 31; // what ibv_qp_attr can say
constexpr int retire_polls = 64;      // more than a full CQ takes

} // namespace

RcCompanion::RcCompanion(World& world, std::shared_ptr<Device> device, Role role,
                         std::shared_ptr<Protocol> protocol)
    : Companion(world, std::move(device), role, std::move(protocol)) {}

std::shared_ptr<RcCompanion> RcCompanion::make(World& world, std::shared_ptr<Device> device,
                                               Role role, std::shared_ptr<Protocol> protocol,
                                               uint32_t credits) {
  std::shared_ptr<RcCompanion> c(
      new RcCompanion(world, std::move(device), role, std::move(protocol)), &RcCompanion::retire);
  if (const int rc = c->set_up(credits); rc != 0) {
    c.reset();
    errno = rc;
    return nullptr;
  }
  c->device_->add(c->qpn(), c);
  return c;
}

int RcCompanion::set_up(uint32_t credits) {
  const provider::Inside inside;
  const auto& real = world_.provider.real();
  Device& d = *device_;
  const Protocol::Size size = protocol_->size(d.budget(), d.left());
  message_max_ = size.message;
  stride_ = buffer_stride(size.message);
  credits_ = std::min(credits, d.credits_to_give(size));
  version_ = protocol_->version();
  receives_ = d.receive_pool(size.message);
  if (receives_ == nullptr)
    return provider::failure();
  const uint32_t messages = credits_ + beside; // that may be unanswered, each way
  report_every_ = std::clamp(messages / 2, 1U, report_every);
  // Beside those that are sent and not reported yet there is one for each request: who keeps them
  // for long, as answers wait for slow pages, keeps them from no other request.
  const uint32_t sends = messages + report_every_ - 1;
  bytes_ = sends * stride_;
  void* memory = memory::map_own(bytes_, PROT_READ | PROT_WRITE);
  if (memory == MAP_FAILED)
    return errno;
  memory_ = static_cast<std::byte*>(memory);
  madvise(memory, bytes_, MADV_DONTFORK);
  mr_ = real.ibv_reg_mr(d.pd(), memory, bytes_, IBV_ACCESS_LOCAL_WRITE);
  if (mr_ == nullptr)
    return provider::failure();
  d.pinned(bytes_);
  free_.reserve(sends);
  for (uint32_t i = sends; i-- > 0;)
    free_.push_back(i);
  sent_.reset(new uint32_t[sends]);
  slots_ = sends;

  ibv_qp_init_attr init{};
  init.send_cq = d.cq();
  init.recv_cq = d.cq();
  init.srq = receives_->srq();
  init.qp_type = IBV_QPT_RC;
  init.cap.max_send_wr = sends;
  init.cap.max_send_sge = 1;
  qp_ = real.ibv_create_qp(d.pd(), &init);
  if (qp_ == nullptr)
    return provider::failure();
  if (const int rc = receives_->add(messages); rc != 0)
    return rc;
  slots_posted_ = messages;
  world_.entropy.fill(&psn_, sizeof psn_);
  psn_ &= 0xFFFFFF;
  return 0;
}

// The last owner may hold any lock, and completions of this queue pair may still be in the CQ: its
// number can be another channel's the moment it is destroyed. So it is destroyed on the service
// thread, after the CQ has been emptied with nobody else polling.
void RcCompanion::retire(RcCompanion* companion) {
  companion->down_ = true;
  companion->world_.service.run([companion] {
    const std::shared_ptr<Device> device = companion->device_;
    const std::lock_guard hold(device->lock());
    if (companion->qp_ != nullptr)
      device->remove(companion->qpn());
    companion->stop();
    for (int round = 0; round < retire_polls && device->poll(); ++round) {
    }
    delete companion;
  });
}

// Everything outstanding completes, in error.
void RcCompanion::stop() noexcept {
  if (qp_ == nullptr)
    return;
  const provider::Inside inside;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  world_.provider.real().ibv_modify_qp(qp_, &attr, IBV_QP_STATE);
}

RcCompanion::~RcCompanion() {
  const provider::Inside inside;
  const auto& real = world_.provider.real();
  if (qp_ != nullptr)
    real.ibv_destroy_qp(qp_);
  if (mr_ != nullptr) {
    real.ibv_dereg_mr(mr_);
    device_->unpinned(bytes_);
  }
  if (memory_ != nullptr)
    munmap(memory_, bytes_);
  if (receives_ != nullptr)
    receives_->spare(slots_posted_);
}

int RcCompanion::attach(const LocalQp& qp, const Remote& remote) {
  const provider::Inside inside;
  const auto& real = world_.provider.real();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = qp.ah.port_num;
  attr.pkey_index = qp.pkey_index;
  int rc = real.ibv_modify_qp(qp_, &attr,
                              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  attr.qp_state = IBV_QPS_RTR;
  attr.ah_attr = qp.ah;
  attr.path_mtu = qp.mtu;
  attr.dest_qp_num = remote.qpn;
  attr.rq_psn = remote.psn;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = 1;
  if (rc == 0)
    rc = real.ibv_modify_qp(qp_, &attr,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = psn_;
  attr.timeout = static_cast<uint8_t>(std::min(remote.timeout, timeout_most));
  attr.retry_cnt = 7;
  attr.rnr_retry = 7;
  attr.max_rd_atomic = 1;
  if (rc == 0)
    rc = real.ibv_modify_qp(qp_, &attr,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  return rc;
}

uint32_t RcCompanion::index_of(const std::byte* message) const noexcept {
  return static_cast<uint32_t>(static_cast<size_t>(message - memory_) / stride_);
}

std::byte* RcCompanion::acquire() noexcept {
  const std::lock_guard hold(lock_);
  if (free_.empty() || down_) {
    starved_ = true;
    return nullptr;
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  return memory_ + index * stride_;
}

void RcCompanion::abandon(std::byte* message) noexcept {
  const std::lock_guard hold(lock_);
  free_.push_back(index_of(message));
}

void RcCompanion::send(std::byte* message, size_t bytes) noexcept {
  ibv_sge sge{reinterpret_cast<uintptr_t>(message), static_cast<uint32_t>(bytes), mr_->lkey};
  ibv_send_wr wr{};
  wr.wr_id = index_of(message);
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  ibv_send_wr* bad = nullptr;
  // One sender at a time: order of messages is order of requests.
  const std::lock_guard hold(lock_);
  const NoCancel whole;
  const provider::Inside inside;
  const bool reports = (sent_end_ + 1) % report_every_ == 0;
  wr.send_flags = reports ? IBV_SEND_SIGNALED : 0;
  if (down_ || device_->context()->ops.post_send(qp_, &wr, &bad) != 0) {
    free_.push_back(static_cast<uint32_t>(wr.wr_id));
    close();
    return;
  }
  sent_[sent_end_++ % slots_] = static_cast<uint32_t>(wr.wr_id);
  world_.counters.count(observe::Counter::link_messages);
}

void RcCompanion::on_sent(uint64_t index, bool ok) {
  assert(device_->lock().held());
  bool tell = false;
  {
    const std::lock_guard hold(lock_);
    // All that was sent before has gone, too.
    for (bool found = false; !found && sent_begin_ != sent_end_;) {
      const uint32_t slot = sent_[sent_begin_++ % slots_];
      free_.push_back(slot);
      found = slot == index;
    }
    tell = starved_ && ok;
    starved_ = starved_ && !ok;
  }
  if (!ok)
    close();
  else if (tell && user())
    user()->on_tx_free();
}

} // namespace adverb::link
