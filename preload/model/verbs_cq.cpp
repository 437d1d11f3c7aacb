// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Completion queues: creation with room for adverb's own completions, and the poll calls.
#include "model/context.h"
#include "model/cq.h"
#include "model/objects.h"
#include "model/verbs.h"

#include <algorithm>
#include <cerrno>

namespace adverb::model {

namespace {

// Kicks and markers may be in the CQ beside what the program expects there: `make` is offered as
// many entries for them as the device will give. A small queue gets few, for programs see its size.
template <typename Make>
auto make_with_room(int programs, const ibv_comp_channel* channel, Make&& make) {
  const int kicks = channel != nullptr ? Kick::entries_max : 0;
  for (int markers = std::clamp(programs / 2, 2, Cq::markers_max); markers != 0; markers /= 2)
    if (const auto made = programs > 0 ? make(kicks + markers) : nullptr)
      return made;
  return make(0); // as large as the device allows already, or no size at all
}

void manage(Context& context, ibv_cq* cq, uint64_t wc_flags, int programs, bool extended) {
  World& world = context.world();
  Objects& objects = world.objects();
  const auto mine = std::make_shared<Cq>(context, cq, wc_flags, programs);
  if (extended)
    mine->ex_ops = objects.edge.patch_cq_ex(reinterpret_cast<ibv_cq_ex*>(cq));
  objects.cqs.insert(cq, mine);
  objects.edge.add(cq, mine.get());
  world.counters.count(observe::Counter::cqs_managed);
}

} // namespace

ibv_cq* Verbs::create_cq(ibv_context* verbs, int cqe, void* cq_context, ibv_comp_channel* channel,
                         int comp_vector) {
  const auto context = world.objects().managed(verbs);
  const auto& real = world.provider.real();
  ibv_cq* cq = nullptr;
  {
    const provider::Inside inside;
    const auto make = [&](int own) {
      return real.ibv_create_cq(verbs, cqe + own, cq_context, channel, comp_vector);
    };
    cq = context ? make_with_room(cqe, channel, make) : make(0);
  }
  if (cq != nullptr && context)
    manage(*context, cq, 0, cqe, false);
  return cq;
}

ibv_cq_ex* Verbs::create_cq_ex(ibv_context* verbs, ibv_cq_init_attr_ex* attr) {
  const auto create = world.provider.ops(verbs).create_cq_ex;
  const auto context = world.objects().managed(verbs);
  const provider::Inside inside;
  if (!context)
    return create(verbs, attr);
  ibv_cq_init_attr_ex mine = *attr;
  // Told apart by queue pair whatever the program asked for.
  mine.wc_flags |= IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_BYTE_LEN;
  const auto programs = static_cast<int>(attr->cqe);
  ibv_cq_ex* cq = make_with_room(programs, attr->channel, [&](int own) {
    mine.cqe = attr->cqe + static_cast<uint32_t>(own);
    return create(verbs, &mine);
  });
  if (cq != nullptr)
    manage(*context, ibv_cq_ex_to_cq(cq), mine.wc_flags, programs, true);
  return cq;
}

int Verbs::resize_cq(ibv_cq* cq, int cqe) {
  const auto& real = world.provider.real();
  Cq* const mine = world.objects().cqs.find(cq);
  const provider::Inside inside;
  if (mine == nullptr)
    return real.ibv_resize_cq(cq, cqe);
  // What is in it must have room in what the program asks for, not in what adverb adds to that.
  if (cqe >= 0 && mine->holds_more_than(static_cast<size_t>(cqe)))
    return EINVAL;
  int rc = 0;
  make_with_room(cqe, cq->channel, [&](int own) {
    return (rc = real.ibv_resize_cq(cq, cqe + own)) == 0 ? cq : nullptr;
  });
  if (rc == 0)
    mine->resized(cqe);
  return rc;
}

int Verbs::destroy_cq(ibv_cq* cq) {
  Objects& objects = world.objects();
  const auto mine = objects.cqs.share(cq);
  if (mine && mine->in_use()) {
    const provider::Inside inside; // says EBUSY; all of it goes on as before
    return world.provider.real().ibv_destroy_cq(cq);
  }
  if (mine) {
    mine->close_kick(); // while whoever reads its events still finds whose it is
    objects.cqs.erase(cq);
    objects.edge.remove(cq);
    mine->close();
  }
  int rc = 0;
  {
    const provider::Inside inside;
    rc = world.provider.real().ibv_destroy_cq(cq);
  }
  if (rc != 0 && mine) { // still in use; goes on as before
    mine->reopen();
    objects.cqs.insert(cq, mine);
    objects.edge.add(cq, mine.get());
  }
  return rc;
}

Cq* Verbs::managed(ibv_cq* cq) {
  return world.objects().cqs.find(cq);
}

int poll_cq(Cq& cq, int entries, ibv_wc* wc) {
  return cq.poll(entries, wc);
}
int req_notify_cq(Cq& cq, int solicited_only) {
  return cq.arm(solicited_only);
}

int cq_ex_start_poll(Cq& mine, ibv_cq_ex*, ibv_poll_cq_attr* attr) {
  return mine.start_poll(attr);
}
int cq_ex_next_poll(Cq& mine, ibv_cq_ex*) {
  return mine.next_poll();
}
void cq_ex_end_poll(Cq& mine, ibv_cq_ex*) {
  mine.end_poll();
}
ibv_wc_opcode cq_ex_read_opcode(Cq& mine, ibv_cq_ex*) {
  return mine.current().wc.opcode;
}
uint32_t cq_ex_read_vendor_err(Cq& mine, ibv_cq_ex*) {
  return mine.current().wc.vendor_err;
}
uint32_t cq_ex_read_byte_len(Cq& mine, ibv_cq_ex*) {
  return mine.current().wc.byte_len;
}
__be32 cq_ex_read_imm_data(Cq& mine, ibv_cq_ex*) {
  return mine.current().wc.imm_data;
}
uint32_t cq_ex_read_qp_num(Cq& mine, ibv_cq_ex*) {
  return mine.current().wc.qp_num;
}
uint32_t cq_ex_read_src_qp(Cq& mine, ibv_cq_ex*) {
  return mine.current().wc.src_qp;
}
unsigned int cq_ex_read_wc_flags(Cq& mine, ibv_cq_ex*) {
  return mine.current().wc.wc_flags;
}
uint32_t cq_ex_read_slid(Cq& mine, ibv_cq_ex*) {
  return mine.current().wc.slid;
}
uint8_t cq_ex_read_sl(Cq& mine, ibv_cq_ex*) {
  return mine.current().wc.sl;
}
uint8_t cq_ex_read_dlid_path_bits(Cq& mine, ibv_cq_ex*) {
  return mine.current().wc.dlid_path_bits;
}
uint64_t cq_ex_read_completion_ts(Cq& mine, ibv_cq_ex*) {
  return mine.current().timestamp;
}
uint16_t cq_ex_read_cvlan(Cq& mine, ibv_cq_ex*) {
  return mine.current().cvlan;
}
uint32_t cq_ex_read_flow_tag(Cq& mine, ibv_cq_ex*) {
  return mine.current().flow_tag;
}
void cq_ex_read_tm_info(Cq& mine, ibv_cq_ex*, ibv_wc_tm_info* info) {
  *info = mine.current().tm;
}
uint64_t cq_ex_read_completion_wallclock_ns(Cq& mine, ibv_cq_ex*) {
  return mine.current().wallclock;
}

} // namespace adverb::model
