// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Completion queues: creation with room for adverb's own completions, and the poll calls.
#include "interpose/dispatch.h"
#include "interpose/patch.h"
#include "model/context.h"
#include "model/cq.h"
#include "model/verbs.h"
#include "observe/counters.h"
#include "provider/ops.h"
#include "provider/real.h"

#include <cerrno>

namespace adverb::model {

namespace {

// A kick and a marker may be in the CQ beside what the program expects there.
constexpr int own_entries = 2;

void manage(const std::shared_ptr<Context>& context, ibv_cq* cq, uint64_t wc_flags, bool extended) {
  interpose::patch_data_path(cq->context);
  auto mine = std::make_shared<Cq>(*context, cq, wc_flags);
  if (extended)
    mine->ex_ops = interpose::patch_cq_ex(reinterpret_cast<ibv_cq_ex*>(cq));
  Objects::get().cqs.insert(cq, std::move(mine));
  interpose::add_cq(cq, true);
  observe::count(observe::Counter::cqs_managed);
}

Cq* of(ibv_cq_ex* cq) {
  return Objects::get().cqs.find(cq);
}

} // namespace

ibv_cq* create_cq(ibv_context* verbs, int cqe, void* cq_context, ibv_comp_channel* channel,
                  int comp_vector) {
  const auto context = find(verbs);
  const auto& real = provider::real();
  ibv_cq* cq = nullptr;
  {
    const provider::Inside inside;
    if (context && cqe > 0)
      cq = real.ibv_create_cq(verbs, cqe + own_entries, cq_context, channel, comp_vector);
    if (cq == nullptr) // not managed, or already as large as the device allows
      cq = real.ibv_create_cq(verbs, cqe, cq_context, channel, comp_vector);
  }
  if (cq != nullptr && context)
    manage(context, cq, 0, false);
  return cq;
}

ibv_cq_ex* create_cq_ex(ibv_context* verbs, ibv_cq_init_attr_ex* attr) {
  const auto create = provider::ops(verbs).create_cq_ex;
  const auto context = find(verbs);
  const provider::Inside inside;
  if (!context)
    return create(verbs, attr);
  ibv_cq_init_attr_ex mine = *attr;
  // Told apart by queue pair whatever the program asked for.
  mine.wc_flags |= IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_BYTE_LEN;
  mine.cqe = attr->cqe + own_entries;
  ibv_cq_ex* cq = create(verbs, &mine);
  if (cq == nullptr) {
    mine.cqe = attr->cqe;
    cq = create(verbs, &mine);
  }
  if (cq != nullptr)
    manage(context, ibv_cq_ex_to_cq(cq), mine.wc_flags, true);
  return cq;
}

int resize_cq(ibv_cq* cq, int cqe) {
  const bool managed = Objects::get().cqs.find(cq) != nullptr;
  const provider::Inside inside;
  if (managed && provider::real().ibv_resize_cq(cq, cqe + own_entries) == 0)
    return 0;
  return provider::real().ibv_resize_cq(cq, cqe);
}

int destroy_cq(ibv_cq* cq) {
  const auto mine = Objects::get().cqs.erase(cq);
  if (mine) {
    interpose::remove_cq(cq);
    mine->close_kick();
    mine->close();
  }
  int rc = 0;
  {
    const provider::Inside inside;
    rc = provider::real().ibv_destroy_cq(cq);
  }
  if (rc != 0 && mine) { // still in use; goes on as before
    mine->reopen();
    Objects::get().cqs.insert(cq, mine);
    interpose::add_cq(cq, true);
  }
  return rc;
}

int poll_cq(ibv_cq* cq, int entries, ibv_wc* wc) {
  if (Cq* mine = Objects::get().cqs.find(cq))
    return mine->poll(entries, wc);
  return provider::ops(cq->context).poll_cq(cq, entries, wc);
}

int req_notify_cq(ibv_cq* cq, int solicited_only) {
  if (Cq* mine = Objects::get().cqs.find(cq))
    return mine->arm(solicited_only);
  return provider::ops(cq->context).req_notify_cq(cq, solicited_only);
}

int cq_ex_start_poll(ibv_cq_ex* cq, ibv_poll_cq_attr* attr) {
  return of(cq)->start_poll(attr);
}
int cq_ex_next_poll(ibv_cq_ex* cq) {
  return of(cq)->next_poll();
}
void cq_ex_end_poll(ibv_cq_ex* cq) {
  of(cq)->end_poll();
}
ibv_wc_opcode cq_ex_read_opcode(ibv_cq_ex* cq) {
  return of(cq)->current().wc.opcode;
}
uint32_t cq_ex_read_vendor_err(ibv_cq_ex* cq) {
  return of(cq)->current().wc.vendor_err;
}
uint32_t cq_ex_read_byte_len(ibv_cq_ex* cq) {
  return of(cq)->current().wc.byte_len;
}
__be32 cq_ex_read_imm_data(ibv_cq_ex* cq) {
  return of(cq)->current().wc.imm_data;
}
uint32_t cq_ex_read_qp_num(ibv_cq_ex* cq) {
  return of(cq)->current().wc.qp_num;
}
uint32_t cq_ex_read_src_qp(ibv_cq_ex* cq) {
  return of(cq)->current().wc.src_qp;
}
unsigned int cq_ex_read_wc_flags(ibv_cq_ex* cq) {
  return of(cq)->current().wc.wc_flags;
}
uint32_t cq_ex_read_slid(ibv_cq_ex* cq) {
  return of(cq)->current().wc.slid;
}
uint8_t cq_ex_read_sl(ibv_cq_ex* cq) {
  return of(cq)->current().wc.sl;
}
uint8_t cq_ex_read_dlid_path_bits(ibv_cq_ex* cq) {
  return of(cq)->current().wc.dlid_path_bits;
}
uint64_t cq_ex_read_completion_ts(ibv_cq_ex* cq) {
  return of(cq)->current().timestamp;
}
uint16_t cq_ex_read_cvlan(ibv_cq_ex* cq) {
  return of(cq)->current().cvlan;
}
uint32_t cq_ex_read_flow_tag(ibv_cq_ex* cq) {
  return of(cq)->current().flow_tag;
}
void cq_ex_read_tm_info(ibv_cq_ex* cq, ibv_wc_tm_info* info) {
  *info = of(cq)->current().tm;
}
uint64_t cq_ex_read_completion_wallclock_ns(ibv_cq_ex* cq) {
  return of(cq)->current().wallclock;
}

} // namespace adverb::model
