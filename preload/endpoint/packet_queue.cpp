// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "endpoint/packet_queue.h"
#include "memory/own.h"
#include "world/world.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>

namespace adverb::endpoint {
namespace {

constexpr uint32_t receives_least = 128;
constexpr uint32_t sends_least = 16;
constexpr uint32_t chain_most = 16; // packets posted by one call
constexpr uint32_t signal_every = 16;
constexpr uint32_t grh_bytes = 40;
constexpr size_t line = 64;
constexpr uint32_t psn_mask = 0xFFFFFF;
constexpr uint32_t qkey_mask = 0x7FFFFFFF; // with the top bit a Q_Key is the kernel's to give
constexpr uint8_t hops = 64;

uint32_t bytes_of(uint8_t mtu) noexcept {
  return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128U << mtu : 0;
}

bool is_v4(const ibv_gid& gid) noexcept {
  constexpr uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  return memcmp(gid.raw, mapped, sizeof mapped) == 0;
}

} // namespace

PacketQueue::PacketQueue(World& world, ibv_pd* pd, const QueueOptions& options)
    : world_(world), pd_(pd), ops_(world.provider.ops(pd->context)), options_(options) {}

std::unique_ptr<PacketQueue> PacketQueue::make(World& world, ibv_pd* pd,
                                               const QueueOptions& options) {
  std::unique_ptr<PacketQueue> queue(new PacketQueue(world, pd, options));
  const int rc = queue->set_up();
  if (rc == 0)
    return queue;
  queue.reset();
  errno = rc;
  return nullptr;
}

int PacketQueue::set_up() {
  const provider::Inside inside;
  const auto& real = world_.provider.real();
  ibv_context* const context = pd_->context;
  ibv_port_attr port{};
  if (const int rc = real.ibv_query_port(context, options_.port,
                                         reinterpret_cast<_compat_ibv_port_attr*>(&port));
      rc != 0)
    return rc;
  if (bytes_of(static_cast<uint8_t>(port.active_mtu)) == 0)
    return ENETDOWN;
  if (const int rc = address_self(port); rc != 0)
    return rc;
  before_payload_ = options_.type == IBV_QPT_UD ? grh_bytes : 0;
  stride_ = (before_payload_ + bytes_of(address_.mtu) + line - 1) / line * line;
  events_ = real.ibv_create_comp_channel(context);
  if (events_ == nullptr)
    return provider::failure();
  // Another thread may have taken the event that a sleeper was told of.
  fcntl(events_->fd, F_SETFL, fcntl(events_->fd, F_GETFL) | O_NONBLOCK);
  receives_ = std::max(options_.receives, receives_least);
  sends_ = std::max(options_.sends, sends_least);
  // A device has bounds of its own on queues; what it refuses is asked for by halves.
  for (;; receives_ /= 2) {
    sent_ = real.ibv_create_cq(context, static_cast<int>(sends_), nullptr, events_, 0);
    received_ = real.ibv_create_cq(context, static_cast<int>(receives_), nullptr, events_, 0);
    if (sent_ != nullptr && received_ != nullptr) {
      ibv_qp_init_attr init{};
      init.send_cq = sent_;
      init.recv_cq = received_;
      init.qp_type = options_.type;
      init.cap.max_send_wr = sends_;
      init.cap.max_recv_wr = receives_;
      init.cap.max_send_sge = init.cap.max_recv_sge = 1;
      qp_ = real.ibv_create_qp(pd_, &init);
    }
    if (qp_ != nullptr)
      break;
    const int rc = provider::failure();
    for (ibv_cq** cq : {&sent_, &received_})
      if (*cq != nullptr) {
        real.ibv_destroy_cq(*cq);
        *cq = nullptr;
      }
    if (receives_ / 2 < receives_least)
      return rc;
  }
  memory_bytes_ = size_t{receives_ + sends_} * stride_;
  void* const memory = memory::map_own(memory_bytes_, PROT_READ | PROT_WRITE);
  if (memory == MAP_FAILED)
    return errno;
  memory_ = static_cast<std::byte*>(memory);
  madvise(memory, memory_bytes_, MADV_DONTFORK);
  mr_ = real.ibv_reg_mr(pd_, memory, memory_bytes_, IBV_ACCESS_LOCAL_WRITE);
  if (mr_ == nullptr)
    return provider::failure();
  world_.counters.gauge_add(observe::Gauge::pinned_bytes, static_cast<int64_t>(memory_bytes_));
  chain_.resize(chain_most);
  chain_sges_.resize(chain_most);
  for (uint32_t i = 0; i < chain_most; ++i) {
    chain_sges_[i].lkey = mr_->lkey;
    chain_[i].next = i + 1 < chain_most ? &chain_[i + 1] : nullptr;
    chain_[i].sg_list = &chain_sges_[i];
    chain_[i].num_sge = 1;
    chain_[i].opcode = IBV_WR_SEND;
  }
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = options_.port;
  attr.qkey = address_.qkey;
  const int rc =
      real.ibv_modify_qp(qp_, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                             (options_.type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
  address_.qpn = qp_->qp_num;
  return rc != 0 ? rc : fill_receives();
}

int PacketQueue::address_self(const ibv_port_attr& port) {
  const auto& real = world_.provider.real();
  ibv_gid gid{};
  int index = options_.gid_index;
  if (index < 0) {
    index = 0;
    for (int i = 0; i < port.gid_tbl_len; ++i)
      if (real.ibv_query_gid(pd_->context, options_.port, i, &gid) == 0 && is_v4(gid)) {
        index = i;
        break;
      }
  }
  if (real.ibv_query_gid(pd_->context, options_.port, index, &gid) != 0)
    return provider::failure();
  options_.gid_index = index;
  memcpy(address_.gid, gid.raw, sizeof address_.gid);
  address_.lid = port.lid;
  address_.mtu = static_cast<uint8_t>(port.active_mtu);
  address_.type = static_cast<uint8_t>(options_.type);
  world_.entropy.fill(&address_.psn, sizeof address_.psn);
  world_.entropy.fill(&address_.qkey, sizeof address_.qkey);
  address_.psn &= psn_mask;
  address_.qkey &= qkey_mask;
  return 0;
}

int PacketQueue::connect(const QueueAddress& peer) {
  if (peer.type != address_.type)
    return EPROTOTYPE;
  const uint8_t mtu = std::min(peer.mtu, address_.mtu);
  if (bytes_of(mtu) == 0)
    return EINVAL;
  const provider::Inside inside;
  const auto& real = world_.provider.real();
  peer_ = peer;
  packet_bytes_ = bytes_of(mtu);
  path_.port_num = options_.port;
  path_.dlid = peer.lid;
  path_.is_global = 1;
  path_.grh.hop_limit = hops;
  path_.grh.sgid_index = static_cast<uint8_t>(options_.gid_index);
  memcpy(path_.grh.dgid.raw, peer.gid, sizeof peer.gid);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  int rc = 0;
  if (options_.type == IBV_QPT_UC) {
    attr.ah_attr = path_;
    attr.path_mtu = static_cast<ibv_mtu>(mtu);
    attr.dest_qp_num = peer.qpn;
    attr.rq_psn = peer.psn;
    rc = real.ibv_modify_qp(
        qp_, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
  } else {
    if (ah_ != nullptr) // of an attempt that failed later
      real.ibv_destroy_ah(ah_);
    ah_ = real.ibv_create_ah(pd_, &path_);
    if (ah_ == nullptr)
      return provider::failure();
    for (ibv_send_wr& wr : chain_)
      wr.wr.ud = {ah_, peer.qpn, peer.qkey};
    rc = real.ibv_modify_qp(qp_, &attr, IBV_QP_STATE);
  }
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = address_.psn;
  return rc != 0 ? rc : real.ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

PacketQueue::~PacketQueue() {
  const provider::Inside inside;
  const auto& real = world_.provider.real();
  if (qp_ != nullptr)
    real.ibv_destroy_qp(qp_);
  if (ah_ != nullptr)
    real.ibv_destroy_ah(ah_);
  for (ibv_cq* cq : {sent_, received_})
    if (cq != nullptr)
      real.ibv_destroy_cq(cq);
  if (events_ != nullptr)
    real.ibv_destroy_comp_channel(events_);
  if (mr_ != nullptr) {
    real.ibv_dereg_mr(mr_);
    world_.counters.gauge_add(observe::Gauge::pinned_bytes, -static_cast<int64_t>(memory_bytes_));
  }
  if (memory_ != nullptr)
    munmap(memory_, memory_bytes_);
}

void PacketQueue::stop() noexcept {
  const provider::Inside inside;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  world_.provider.real().ibv_modify_qp(qp_, &attr, IBV_QP_STATE);
}

int PacketQueue::fill_receives() {
  for (uint32_t i = 0; i < receives_; i += batch) {
    const uint32_t count = std::min(batch, receives_ - i);
    for (uint32_t j = 0; j < count; ++j)
      wcs_[j].wr_id = i + j;
    post_again(count);
  }
  return failed_ != 0 ? EIO : 0;
}

std::byte* PacketQueue::buffer() noexcept {
  if (posted_ + chained_ - completed_ == sends_) {
    flush();
    return nullptr;
  }
  return slot(receives_ + next_send_);
}

void PacketQueue::post(uint32_t bytes) noexcept {
  assert(bytes <= packet_bytes_);
  ibv_send_wr& wr = chain_[chained_];
  ibv_sge& sge = chain_sges_[chained_];
  sge.addr = reinterpret_cast<uintptr_t>(slot(receives_ + next_send_));
  sge.length = bytes;
  wr.wr_id = posted_ + chained_ + 1; // what has completed when this one has
  wr.send_flags = 0;
  if (++unsignaled_ == signal_every) {
    wr.send_flags = IBV_SEND_SIGNALED;
    unsignaled_ = 0;
  }
  if (++next_send_ == sends_)
    next_send_ = 0;
  if (++chained_ == chain_most)
    flush();
}

void PacketQueue::flush() noexcept {
  if (chained_ == 0)
    return;
  const provider::Inside inside;
  ibv_send_wr* bad = nullptr;
  ibv_send_wr*& after_last = chain_[chained_ - 1].next;
  ibv_send_wr* const next = std::exchange(after_last, nullptr);
  if (ops_.post_send(qp_, chain_.data(), &bad) != 0)
    failed_ = failed_ != 0 ? failed_ : IBV_WC_GENERAL_ERR;
  after_last = next;
  posted_ += chained_;
  chained_ = 0;
}

uint32_t PacketQueue::collect() noexcept {
  const provider::Inside inside;
  const int sent = ops_.poll_cq(sent_, batch, wcs_);
  for (int i = 0; i < sent; ++i) {
    completed_ = std::max(completed_, wcs_[i].wr_id);
    if (wcs_[i].status != IBV_WC_SUCCESS && failed_ == 0)
      failed_ = wcs_[i].status;
  }
  const int received = ops_.poll_cq(received_, batch, wcs_);
  if (sent < 0 || received < 0)
    failed_ = failed_ != 0 ? failed_ : IBV_WC_GENERAL_ERR;
  if (received <= 0) {
    in_a_row_ = 0;
    return 0;
  }
  in_a_row_ += static_cast<uint32_t>(received);
  if (in_a_row_ >= receives_) {
    dry_ = true;
    in_a_row_ = 0;
  }
  return static_cast<uint32_t>(received);
}

// Of a datagram the kernel of the sender names the queue pair it came from.
std::span<const std::byte> PacketQueue::arrived(uint32_t i) noexcept {
  const ibv_wc& wc = wcs_[i];
  if (wc.status != IBV_WC_SUCCESS) {
    if (failed_ == 0)
      failed_ = wc.status;
    return {};
  }
  if (wc.byte_len <= before_payload_ || (options_.type == IBV_QPT_UD && wc.src_qp != peer_.qpn))
    return {};
  return {slot(static_cast<uint32_t>(wc.wr_id)) + before_payload_, wc.byte_len - before_payload_};
}

void PacketQueue::post_again(uint32_t count) noexcept {
  if (count == 0)
    return;
  const provider::Inside inside;
  ibv_recv_wr wrs[batch];
  ibv_sge sges[batch];
  for (uint32_t i = 0; i < count; ++i) {
    sges[i] = {reinterpret_cast<uintptr_t>(slot(static_cast<uint32_t>(wcs_[i].wr_id))),
               static_cast<uint32_t>(stride_), mr_->lkey};
    wrs[i] = {wcs_[i].wr_id, i + 1 < count ? &wrs[i + 1] : nullptr, &sges[i], 1};
  }
  ibv_recv_wr* bad = nullptr;
  if (ops_.post_recv(qp_, wrs, &bad) != 0 && failed_ == 0)
    failed_ = IBV_WC_GENERAL_ERR;
}

bool PacketQueue::ran_dry() noexcept {
  return std::exchange(dry_, false);
}

int PacketQueue::arm(bool sends) noexcept {
  const provider::Inside inside;
  const int rc = ops_.req_notify_cq(received_, 0);
  return rc != 0 || !sends ? rc : ops_.req_notify_cq(sent_, 0);
}

void PacketQueue::woken() noexcept {
  const provider::Inside inside;
  const auto& real = world_.provider.real();
  ibv_cq* cq = nullptr;
  void* unused = nullptr;
  if (real.ibv_get_cq_event(events_, &cq, &unused) == 0)
    real.ibv_ack_cq_events(cq, 1);
}

} // namespace adverb::endpoint
