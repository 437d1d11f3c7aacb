// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Taking completions out: ibv_poll_cq and the ibv_start_poll family.
#include "objects.h"

#include <cerrno>
#include <ctime>

namespace adverb::loopback {

namespace {

void fill_wc(const Completion& completion, ibv_wc& wc) {
  wc.wr_id = completion.wr_id;
  wc.status = static_cast<ibv_wc_status>(completion.status);
  wc.opcode = static_cast<ibv_wc_opcode>(completion.opcode);
  wc.vendor_err = 0;
  wc.byte_len = completion.byte_len;
  wc.imm_data = completion.imm_data;
  wc.qp_num = completion.qp_num;
  wc.src_qp = completion.src_qp;
  wc.wc_flags = completion.wc_flags;
  wc.pkey_index = 0;
  wc.slid = 0;
  wc.sl = 0;
  wc.dlid_path_bits = 0;
}

Cq& cq_of(ibv_cq_ex* base) {
  return *as<Cq>(base);
}

bool take(Cq& cq) {
  const CqShared& shared = *cq.shared;
  if (cq.cursor == shared.tail.load(std::memory_order_acquire))
    return false;
  cq.current = cq.process->at<Completion>(shared.entries)[cq.cursor % shared.capacity];
  ++cq.cursor;
  cq.ex.wr_id = cq.current.wr_id;
  cq.ex.status = static_cast<ibv_wc_status>(cq.current.status);
  return true;
}

int start_poll(ibv_cq_ex* base, ibv_poll_cq_attr* attr) {
  if (attr->comp_mask != 0)
    return EINVAL;
  Cq& cq = cq_of(base);
  cq.poll_mutex.lock();
  cq.cursor = cq.shared->head.load(std::memory_order_relaxed);
  if (take(cq))
    return 0;
  cq.poll_mutex.unlock();
  return ENOENT;
}

int next_poll(ibv_cq_ex* base) {
  return take(cq_of(base)) ? 0 : ENOENT;
}

void end_poll(ibv_cq_ex* base) {
  Cq& cq = cq_of(base);
  cq.shared->head.store(cq.cursor, std::memory_order_release);
  cq.poll_mutex.unlock();
}

ibv_wc_opcode read_opcode(ibv_cq_ex* base) {
  return static_cast<ibv_wc_opcode>(cq_of(base).current.opcode);
}
uint32_t read_vendor_err(ibv_cq_ex*) {
  return 0;
}
uint32_t read_byte_len(ibv_cq_ex* base) {
  return cq_of(base).current.byte_len;
}
__be32 read_imm_data(ibv_cq_ex* base) {
  return cq_of(base).current.imm_data;
}
uint32_t read_qp_num(ibv_cq_ex* base) {
  return cq_of(base).current.qp_num;
}
uint32_t read_src_qp(ibv_cq_ex* base) {
  return cq_of(base).current.src_qp;
}
unsigned int read_wc_flags(ibv_cq_ex* base) {
  return cq_of(base).current.wc_flags;
}
uint32_t read_slid(ibv_cq_ex*) {
  return 0;
}
uint8_t read_zero(ibv_cq_ex*) {
  return 0;
}
uint64_t read_completion_ts(ibv_cq_ex* base) {
  return cq_of(base).current.timestamp;
}
uint16_t read_cvlan(ibv_cq_ex*) {
  return 0;
}
uint32_t read_flow_tag(ibv_cq_ex*) {
  return 0;
}

uint64_t read_completion_wallclock_ns(ibv_cq_ex* base) {
  timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  const uint64_t now =
      static_cast<uint64_t>(wall.tv_sec) * 1000000000u + static_cast<uint64_t>(wall.tv_nsec);
  return now - (now_ns() - cq_of(base).current.timestamp);
}

} // namespace

void install_extended_poll(Cq& cq) {
  cq.ex.start_poll = start_poll;
  cq.ex.next_poll = next_poll;
  cq.ex.end_poll = end_poll;
  cq.ex.read_opcode = read_opcode;
  cq.ex.read_vendor_err = read_vendor_err;
  cq.ex.read_byte_len = read_byte_len;
  cq.ex.read_imm_data = read_imm_data;
  cq.ex.read_qp_num = read_qp_num;
  cq.ex.read_src_qp = read_src_qp;
  cq.ex.read_wc_flags = read_wc_flags;
  cq.ex.read_slid = read_slid;
  cq.ex.read_sl = read_zero;
  cq.ex.read_dlid_path_bits = read_zero;
  cq.ex.read_completion_ts = read_completion_ts;
  cq.ex.read_cvlan = read_cvlan;
  cq.ex.read_flow_tag = read_flow_tag;
  cq.ex.read_completion_wallclock_ns = read_completion_wallclock_ns;
}

int poll_cq(ibv_cq* base, int count, ibv_wc* wc) {
  Cq& cq = *as<Cq>(base);
  CqShared& shared = *cq.shared;
  if (shared.head.load(std::memory_order_relaxed) == shared.tail.load(std::memory_order_acquire))
    return 0;
  std::lock_guard lock(cq.poll_mutex);
  const uint64_t head = shared.head.load(std::memory_order_relaxed);
  const uint64_t tail = shared.tail.load(std::memory_order_acquire);
  const auto* entries = cq.process->at<Completion>(shared.entries);
  uint64_t at = head;
  for (; at != tail && at - head < static_cast<uint64_t>(count); ++at)
    fill_wc(entries[at % shared.capacity], wc[at - head]);
  shared.head.store(at, std::memory_order_release);
  return static_cast<int>(at - head);
}

} // namespace adverb::loopback
