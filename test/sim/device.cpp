// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "device_parts.h"
#include "fibre.h"
#include "pages.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>

namespace sim {

Fabric* Fabric::present_ = nullptr;

struct Verbs {
  using Cq = Fabric::Cq;
  using Qp = Fabric::Qp;
  using Mr = Fabric::Mr;
  using Srq = Fabric::Srq;
  using Request = Fabric::Request;
  using Stage = Request::Stage;

  static constexpr uint32_t anybody = 0xFF'FFFF; // who a datagram goes to it says itself

  static Fabric& fabric() { return Fabric::present(); }
  static Qp& of(ibv_qp* qp) { return *reinterpret_cast<Qp*>(qp); }
  static Cq& of(ibv_cq* cq) { return *reinterpret_cast<Cq*>(cq); }
  static Cq& of(ibv_cq_ex* cq) { return *reinterpret_cast<Cq*>(cq); }
  static Srq& of(ibv_srq* srq) { return *reinterpret_cast<Srq*>(srq); }

  // Multiplied by the golden ratio, as Knuth hashes (The Art of Computer Programming, 6.4), one is
  // but a little more than the one before.
  static uint32_t fresh_key() {
    constexpr uint32_t inverse = 0x0E8B2F51;
    static_assert(0x9E3779B1U * inverse == 1U);
    const uint32_t number = fabric().next_key_++;
    return fabric().alike ? number * inverse : number;
  }
  static uint32_t take_key() {
    auto& freed = fabric().free_keys_;
    if (freed.empty())
      return fresh_key();
    const uint32_t key = freed.back();
    freed.pop_back();
    return key;
  }
  static void give_key(uint32_t key) {
    if (fabric().reuses_keys)
      fabric().free_keys_.push_back(key);
  }
  // Memory windows, of which the device may have a few.
  static ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
    if (fabric().windows == 0) {
      errno = ENOMEM;
      return nullptr;
    }
    --fabric().windows;
    auto* mw = new ibv_mw{};
    mw->context = pd->context;
    mw->pd = pd;
    mw->type = type;
    mw->rkey = take_key();
    return mw;
  }
  static int dealloc_mw(ibv_mw* mw) {
    give_key(mw->rkey);
    delete mw;
    return 0;
  }

  static bool are_rights(unsigned access) {
    constexpr unsigned all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                             IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                             IBV_ACCESS_ZERO_BASED;
    constexpr unsigned needs_local = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    return (access & ~all) == 0 &&
           ((access & needs_local) == 0 || (access & IBV_ACCESS_LOCAL_WRITE) != 0);
  }
  static ibv_mr* reg(ibv_pd* pd, void* start, size_t length, uint64_t iova, int access) {
    if (fabric().refuses && !Fabric::is_linking(pd->context) && fabric().refuses()) {
      errno = ENOMEM;
      return nullptr;
    }
    if (length == 0 || reinterpret_cast<uintptr_t>(start) + length < length ||
        !are_rights(static_cast<unsigned>(access)) ||
        ((reinterpret_cast<uintptr_t>(start) ^ iova) & 4095) != 0) {
      errno = EINVAL;
      return nullptr;
    }
    if (!Pages::all_there(reinterpret_cast<uintptr_t>(start), length)) {
      errno = EFAULT;
      return nullptr;
    }
    auto mr = std::make_unique<Mr>();
    mr->mr.context = pd->context;
    mr->mr.pd = pd;
    mr->mr.addr = start;
    mr->mr.length = length;
    mr->mr.lkey = mr->mr.rkey = take_key();
    mr->access = static_cast<unsigned>(access);
    mr->iova = mr->by_offset() ? 0 : iova;
    auto* out = &mr->mr;
    fabric().mrs_[out->lkey] = std::move(mr);
    return out;
  }
  static int dereg(ibv_mr* mr) {
    const uint32_t key = mr->lkey;
    if (fabric().bound.contains(mr))
      return EBUSY;
    if (fabric().mrs_.erase(key) == 0)
      fabric().misuse.emplace_back("a region is deregistered that is none");
    else
      give_key(key);
    return 0;
  }

  // The region has another key afterwards, as with some providers.
  static int rereg(ibv_mr* base, int flags, ibv_pd* pd, void* start, size_t length, int access) {
    constexpr int all =
        IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    const bool moves = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
    if (flags == 0 || (flags & ~all) != 0 || (moves && (start == nullptr || length == 0)) ||
        ((flags & IBV_REREG_MR_CHANGE_PD) != 0 && pd == nullptr) ||
        ((flags & IBV_REREG_MR_CHANGE_ACCESS) != 0 && !are_rights(static_cast<unsigned>(access)))) {
      errno = EINVAL;
      return IBV_REREG_MR_ERR_INPUT;
    }
    auto node = fabric().mrs_.extract(base->lkey);
    if (node.empty()) {
      fabric().misuse.emplace_back("a region is changed that is none");
      return IBV_REREG_MR_ERR_INPUT;
    }
    Mr& mr = *node.mapped();
    if ((flags & IBV_REREG_MR_CHANGE_PD) != 0)
      base->pd = pd;
    if ((flags & IBV_REREG_MR_CHANGE_ACCESS) != 0)
      mr.access = static_cast<unsigned>(access);
    if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0) {
      base->addr = start;
      base->length = length;
      mr.iova = mr.by_offset() ? 0 : reinterpret_cast<uintptr_t>(start);
    }
    base->lkey = base->rkey = node.key() = fresh_key();
    fabric().mrs_.insert(std::move(node));
    return 0;
  }

  // A provider takes locks: before it does anything, and when it has, others may go on.
  static int post_send(ibv_qp* base, ibv_send_wr* wr, ibv_send_wr** bad) {
    point();
    if (std::ranges::none_of(fabric().qps_,
                             [&](const auto& one) { return &one.second->qp == base; })) {
      fabric().misuse.emplace_back("a request is posted to a queue pair that is gone");
      *bad = wr;
      return EINVAL;
    }
    const int rc = take(of(base), wr, bad);
    point();
    return rc;
  }
  static int take(Qp& qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    for (; wr != nullptr; wr = wr->next) {
      if (fabric().loud)
        printf("        device: queue pair %u, state %d, is given opcode %d as %llx\n",
               qp.qp.qp_num, qp.qp.state, wr->opcode, static_cast<unsigned long long>(wr->wr_id));
      const bool flushes = qp.qp.state == IBV_QPS_ERR || qp.qp.state == IBV_QPS_SQE;
      if (qp.qp.state != IBV_QPS_RTS && !flushes) {
        *bad = wr;
        return EINVAL;
      }
      // Who wakes the program asks for room that it has, and what is flushed needs none.
      if (fabric().crowded && qp.dest != qp.qp.qp_num && qp.qp.state == IBV_QPS_RTS &&
          !Fabric::is_linking(qp.qp.context) && fabric().crowded()) {
        *bad = wr;
        return ENOMEM;
      }
      if (wr->num_sge < 0 || wr->opcode > IBV_WR_ATOMIC_FETCH_AND_ADD) {
        *bad = wr;
        return EINVAL;
      }
      if (qp.requests.size() >= qp.cap.max_send_wr ||
          static_cast<uint32_t>(wr->num_sge) > qp.cap.max_send_sge) {
        *bad = wr;
        return ENOMEM;
      }
      Request r;
      r.wr = *wr;
      r.sges.assign(wr->sg_list, wr->sg_list + wr->num_sge);
      const bool inlined = (wr->send_flags & IBV_SEND_INLINE) != 0 && !r.fetches();
      for (const ibv_sge& sge : r.sges)
        r.length += sge.length;
      if (inlined && r.length > qp.cap.max_inline_data) {
        *bad = wr;
        return EINVAL;
      }
      for (const ibv_sge& sge : r.sges)
        if (inlined) {
          const auto* from = Pages::kept(reinterpret_cast<void*>(sge.addr));
          r.inlined.insert(r.inlined.end(), from, from + sge.length);
        }
      if (flushes) {
        r.status = IBV_WC_WR_FLUSH_ERR;
        r.stage = Stage::landed;
      }
      qp.requests.push_back(std::move(r));
    }
    return 0;
  }
  static int post_recv(ibv_qp* base, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    Qp& qp = of(base);
    for (; wr != nullptr; wr = wr->next) {
      if (qp.own.size() >= qp.cap.max_recv_wr) {
        *bad = wr;
        return ENOMEM;
      }
      qp.own.push_back({wr->wr_id, {wr->sg_list, wr->sg_list + wr->num_sge}});
    }
    if (qp.qp.state == IBV_QPS_ERR)
      Requests::fail(qp);
    return 0;
  }
  static int post_srq_recv(ibv_srq* base, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    Srq& srq = of(base);
    for (; wr != nullptr; wr = wr->next) {
      if (srq.receives.size() >= srq.depth) {
        *bad = wr;
        return ENOMEM;
      }
      srq.receives.push_back({wr->wr_id, {wr->sg_list, wr->sg_list + wr->num_sge}});
    }
    return 0;
  }
  static int poll_cq(ibv_cq* base, int most, ibv_wc* wc) {
    point();
    Cq& cq = of(base);
    int n = 0;
    for (; n < most && !cq.completions.empty(); ++n) {
      wc[n] = cq.completions.front();
      cq.completions.pop_front();
    }
    point();
    return n;
  }

  static int start_poll(ibv_cq_ex* base, ibv_poll_cq_attr*) { return next_poll(base); }
  static int next_poll(ibv_cq_ex* base) {
    Cq& cq = of(base);
    if (poll_cq(&cq.cq, 1, &cq.current) == 0)
      return ENOENT;
    base->wr_id = cq.current.wr_id;
    base->status = cq.current.status;
    return 0;
  }
  static adverb::provider::CqExOps poll_ops() {
    adverb::provider::CqExOps ops;
    ops.start_poll = start_poll;
    ops.next_poll = next_poll;
    ops.end_poll = [](ibv_cq_ex*) {};
    ops.read_opcode = [](ibv_cq_ex* cq) { return of(cq).current.opcode; };
    ops.read_vendor_err = [](ibv_cq_ex* cq) { return of(cq).current.vendor_err; };
    ops.read_byte_len = [](ibv_cq_ex* cq) { return of(cq).current.byte_len; };
    ops.read_imm_data = [](ibv_cq_ex* cq) { return of(cq).current.imm_data; };
    ops.read_qp_num = [](ibv_cq_ex* cq) { return of(cq).current.qp_num; };
    ops.read_wc_flags = [](ibv_cq_ex* cq) { return of(cq).current.wc_flags; };
    ops.read_completion_ts = [](ibv_cq_ex*) { return uint64_t{1}; };
    return ops;
  }

  static ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr) {
    ibv_cq* cq = create_cq(context, static_cast<int>(attr->cqe), nullptr, attr->channel, 0);
    return cq == nullptr ? nullptr : &of(cq).ex;
  }
  static ibv_cq* create_cq(ibv_context* context, int cqe, void*, ibv_comp_channel* channel, int) {
    // Room for the program's completions, the kick's and one marker: others wait for it. Or plenty.
    const int cqe_max = fabric().roomy ? 1024 : 512 + (channel != nullptr ? 4 : 1);
    const bool linking = Fabric::is_linking(context);
    if (cqe > cqe_max && !linking) {
      errno = EINVAL;
      return nullptr;
    }
    auto* cq = new Cq;
    cq->cq.context = context;
    cq->cq.cqe = cqe;
    cq->cq.channel = channel;
    if (linking)
      fabric().message_cqs_.push_back(cq);
    return &cq->cq;
  }
  template <typename Attr> static ibv_qp* create(ibv_pd* pd, const Attr& attr) {
    auto* qp = new Qp;
    qp->qp.context = pd->context;
    qp->qp.pd = pd;
    qp->qp.send_cq = attr.send_cq;
    qp->qp.recv_cq = attr.recv_cq;
    qp->qp.srq = attr.srq;
    qp->qp.qp_type = attr.qp_type;
    qp->qp.state = IBV_QPS_RESET;
    auto& freed = fabric().free_qpns_;
    qp->qp.qp_num = freed.empty() ? fabric().next_qpn_++ : freed.back();
    if (!freed.empty())
      freed.pop_back();
    qp->srq = attr.srq != nullptr ? &of(attr.srq) : nullptr;
    qp->all_signaled = attr.sq_sig_all != 0;
    qp->cap = attr.cap;
    fabric().qps_[qp->qp.qp_num] = qp;
    return &qp->qp;
  }
  static ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) { return create(pd, *attr); }
  static ibv_qp* create_qp_ex(ibv_context*, ibv_qp_init_attr_ex* attr) {
    return create(attr->pd, *attr);
  }
  static ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) {
    auto* srq = new Srq;
    srq->srq.context = pd->context;
    srq->srq.pd = pd;
    srq->depth = attr->attr.max_wr;
    return &srq->srq;
  }
  static int modify_qp(ibv_qp* base, ibv_qp_attr* attr, int mask) {
    Qp& qp = of(base);
    if ((mask & IBV_QP_ACCESS_FLAGS) != 0)
      qp.access = attr->qp_access_flags;
    if ((mask & IBV_QP_DEST_QPN) != 0)
      qp.dest = attr->dest_qp_num;
    if (qp.qp.qp_type == IBV_QPT_UD)
      qp.dest = anybody;
    if ((mask & IBV_QP_STATE) == 0)
      return 0;
    if (attr->qp_state == IBV_QPS_ERR) {
      Requests::trail(qp);
      Requests::fail(qp);
    }
    if (attr->qp_state == IBV_QPS_RESET) {
      qp.requests.clear();
      qp.own.clear();
      qp.arrived.clear();
      clean(qp);
    }
    qp.qp.state = attr->qp_state;
    return 0;
  }
  static void clean(const Qp& qp) {
    if (fabric().cleans)
      for (ibv_cq* cq : {qp.qp.send_cq, qp.qp.recv_cq})
        std::erase_if(of(cq).completions,
                      [&](const ibv_wc& wc) { return wc.qp_num == qp.qp.qp_num; });
  }
  static int destroy_qp(ibv_qp* base) {
    clean(of(base));
    fabric().qps_.erase(base->qp_num);
    fabric().free_qpns_.push_back(base->qp_num);
    delete &of(base);
    return 0;
  }
};

void Fabric::offer(Steps& steps) {
  Requests::offer(steps);
}

adverb::provider::CqExOps Fabric::poll_ops() {
  return Verbs::poll_ops();
}

bool Fabric::settled(const ibv_qp* qp) {
  const auto at = present().qps_.find(qp->qp_num);
  return at == present().qps_.end() || at->second->arrived.empty();
}

bool Fabric::in_error(const ibv_qp* qp) {
  return qp->state == IBV_QPS_ERR;
}

const adverb::provider::Real& Fabric::real() {
  static const adverb::provider::Real table = [] {
    adverb::provider::Real r;
    r.ibv_alloc_pd = [](ibv_context* context) {
      static uint32_t last = 0;
      auto* pd = new ibv_pd{};
      pd->context = context;
      pd->handle = ++last;
      return pd;
    };
    r.ibv_dealloc_pd = [](ibv_pd* pd) {
      delete pd;
      return 0;
    };
    r.ibv_reg_mr = [](ibv_pd* pd, void* start, size_t length, int access) {
      return Verbs::reg(pd, start, length, reinterpret_cast<uintptr_t>(start), access);
    };
    r.ibv_reg_mr_iova = [](ibv_pd* pd, void* start, size_t length, uint64_t iova, int access) {
      return Verbs::reg(pd, start, length, iova, access);
    };
    r.ibv_dereg_mr = Verbs::dereg;
    r.ibv_rereg_mr = Verbs::rereg;
    r.ibv_create_cq = Verbs::create_cq;
    r.ibv_destroy_cq = [](ibv_cq* cq) {
      delete &Verbs::of(cq);
      return 0;
    };
    r.ibv_create_srq = Verbs::create_srq;
    r.ibv_destroy_srq = [](ibv_srq* srq) {
      delete &Verbs::of(srq);
      return 0;
    };
    r.ibv_qp_to_qp_ex = [](ibv_qp* qp) { return &Verbs::of(qp).ex; };
    r.ibv_create_qp = Verbs::create_qp;
    r.ibv_modify_qp = Verbs::modify_qp;
    r.ibv_destroy_qp = Verbs::destroy_qp;
    r.ibv_query_qp = [](ibv_qp* qp, ibv_qp_attr* attr, int, ibv_qp_init_attr*) {
      attr->qp_state = qp->state;
      return 0;
    };
    r.ibv_query_port = [](ibv_context*, uint8_t, _compat_ibv_port_attr* attr) {
      reinterpret_cast<ibv_port_attr*>(attr)->max_msg_sz = Verbs::fabric().longest;
      return 0;
    };
    r.ibv_query_gid = [](ibv_context*, uint8_t, int, ibv_gid* gid) {
      *gid = {};
      return 0;
    };
    r.ibv_open_device = [](ibv_device* device) { return Fabric::present().open(device); };
    r.ibv_create_comp_channel = [](ibv_context* context) {
      static ibv_comp_channel one{nullptr, -1, 0};
      one.context = context;
      return &one;
    };
    r.ibv_close_device = [](ibv_context*) { return 0; };
    return r;
  }();
  return table;
}

bool Fabric::has_completions(const ibv_cq* base) {
  const auto& all = reinterpret_cast<const Cq*>(base)->completions;
  return std::ranges::any_of(all, [](const ibv_wc& wc) {
    const auto qp = present().qps_.find(wc.qp_num);
    return qp != present().qps_.end() && qp->second->dest != 0;
  });
}

bool Fabric::take_event(ibv_cq* base) {
  auto& cq = Verbs::of(base);
  if (cq.events == 0)
    return false;
  --cq.events;
  return true;
}

Fabric::Fabric() {
  Fabric::present_ = this;
}

// What adverb has opened for its links it keeps for as long as its process is there.
Fabric::~Fabric() {
  for (const auto& [key, mr] : mrs_)
    if (is_linking(mr->mr.context))
      munmap(mr->mr.addr, mr->mr.length);
  for (Cq* cq : message_cqs_)
    delete cq;
  Fabric::present_ = nullptr;
}

uint64_t Fabric::registrations() const {
  return static_cast<uint64_t>(std::ranges::count_if(
      mrs_, [](const auto& entry) { return !is_linking(entry.second->mr.context); }));
}

void Fabric::each_reachable(const ibv_context* context,
                            const std::function<void(const ibv_mr&)>& each) const {
  constexpr unsigned all =
      IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  for (const auto& [key, mr] : mrs_)
    if (mr->mr.context == context && (mr->access & all) == all)
      each(mr->mr);
}

std::byte* Fabric::at(uint32_t key, uint64_t address) const {
  const auto mr = mrs_.find(key);
  if (mr == mrs_.end() || address < mr->second->iova ||
      address - mr->second->iova >= mr->second->mr.length)
    return nullptr;
  return static_cast<std::byte*>(mr->second->mr.addr) + (address - mr->second->iova);
}

uint32_t Fabric::add_view(ibv_pd* pd, void* start, size_t length, uint64_t iova, ReadView read) {
  auto mr = std::make_unique<Mr>();
  mr->mr.context = pd->context;
  mr->mr.pd = pd;
  mr->mr.addr = start;
  mr->mr.length = length;
  mr->mr.lkey = mr->mr.rkey = Verbs::take_key();
  mr->access = IBV_ACCESS_REMOTE_READ;
  mr->iova = iova;
  mr->read = std::move(read);
  const uint32_t key = mr->mr.rkey;
  mrs_[key] = std::move(mr);
  return key;
}

void Fabric::remove_view(uint32_t key) {
  Verbs::dereg(&mrs_.at(key)->mr);
}

bool Fabric::has_messages(const ibv_device* device) const {
  return std::ranges::any_of(message_cqs_, [device](const Cq* cq) {
    return cq->cq.context->device == device && !cq->completions.empty();
  });
}

bool Fabric::is_linking(const ibv_context* context) {
  return std::ranges::any_of(present().devices_, [context](const auto& device) {
    return device->linking && &device->extended.context == context;
  });
}

// The program does first.
ibv_context* Fabric::open(ibv_device* device) {
  const auto it =
      std::ranges::find_if(devices_, [device](const auto& d) { return &d->device == device; });
  if (it == devices_.end())
    return nullptr;
  ibv_context* const its = &(*it)->extended.context;
  if (its->async_fd == 0) {
    its->async_fd = its->cmd_fd = -1;
    return its;
  }
  this->device();
  Device& own = *devices_.back();
  own.linking = true;
  own.extended.context.device = device;
  own.extended.context.async_fd = own.extended.context.cmd_fd = -1;
  return &own.extended.context;
}

ibv_device* Fabric::device() {
  auto fresh = std::make_unique<Device>();
  strcpy(fresh->device.name, ("sim" + std::to_string(devices_.size())).c_str());
  ibv_context& context = fresh->extended.context;
  context.device = &fresh->device;
  context.abi_compat = reinterpret_cast<ibv_context*>(__VERBS_ABI_IS_EXTENDED);
  fresh->extended.sz = sizeof fresh->extended;
  fresh->extended.create_cq_ex = Verbs::create_cq_ex;
  fresh->extended.create_qp_ex = Verbs::create_qp_ex;
  context.ops.post_send = Verbs::post_send;
  context.ops.post_recv = Verbs::post_recv;
  context.ops.post_srq_recv = Verbs::post_srq_recv;
  context.ops.poll_cq = Verbs::poll_cq;
  context.ops.alloc_mw = Verbs::alloc_mw;
  context.ops.dealloc_mw = Verbs::dealloc_mw;
  context.ops.req_notify_cq = [](ibv_cq* cq, int) {
    Verbs::of(cq).armed = true;
    return 0;
  };
  devices_.push_back(std::move(fresh));
  return &devices_.back()->device;
}

} // namespace sim
