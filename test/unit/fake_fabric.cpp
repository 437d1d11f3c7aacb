// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "fake_fabric.h"
#include "memory/mappings.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace adverb::test {

namespace {
FakeFabric* the_fabric = nullptr; // provider functions are given no other way to it
} // namespace

struct FakeFabric::Device {
  ibv_device device{};
  verbs_context extended{};
};

struct FakeFabric::Mr {
  ibv_mr mr{};
  uint64_t iova = 0;
  unsigned access = 0;
};

struct FakeFabric::Cq {
  union {
    ibv_cq_ex extended{};
    ibv_cq cq; // as the library's own cast has it
  };
  std::deque<ibv_wc> completions;
  enum class Armed : uint8_t { no, solicited, any } armed = Armed::no;
  uint64_t events = 0;
};

struct PostedReceive {
  uint64_t wr_id;
  std::vector<ibv_sge> sges;
};

struct FakeFabric::Srq {
  ibv_srq srq{};
  std::deque<PostedReceive> receives;
};

constexpr int elements_most = 16; // of a request

struct FakeFabric::Qp {
  ibv_qp qp{};
  unsigned access = 0;
  uint32_t dest = 0;
  bool all_signaled = false;
  ibv_qp_cap cap{};
  std::deque<PostedReceive> own_receives;
  uint64_t last_receive = 0;
  std::deque<PostedReceive>& receives() {
    return qp.srq != nullptr ? reinterpret_cast<Srq*>(qp.srq)->receives : own_receives;
  }
};

struct Verbs {
  using Cq = FakeFabric::Cq;
  using Qp = FakeFabric::Qp;
  using Mr = FakeFabric::Mr;

  static FakeFabric& fabric() { return *the_fabric; }
  static Qp& of(ibv_qp* qp) { return *reinterpret_cast<Qp*>(qp); }
  static Cq& of(ibv_cq* cq) { return *reinterpret_cast<Cq*>(cq); }

  static ibv_mr* reg(ibv_pd* pd, void* start, size_t length, uint64_t iova, int access) {
    if (fabric().refuse_regions != 0) {
      errno = fabric().refuse_regions;
      return nullptr;
    }
    constexpr int writes =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    const auto at = reinterpret_cast<uintptr_t>(start);
    const bool there =
        memory::mapping_of(at, length, (access & writes) != 0) != memory::Mapping::absent;
    if ((!there && !fabric().knows_all_memory) || ((at ^ iova) & 4095) != 0) {
      errno = there ? EINVAL : EFAULT;
      return nullptr;
    }
    auto mr = std::make_unique<Mr>();
    mr->mr.context = pd->context;
    mr->mr.pd = pd;
    mr->mr.addr = start;
    mr->mr.length = length;
    mr->mr.lkey = mr->mr.rkey = fabric().next_key_++;
    mr->iova = (access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : iova;
    mr->access = static_cast<unsigned>(access);
    fabric().registered += length;
    auto* out = &mr->mr;
    fabric().mrs_[out->lkey] = std::move(mr);
    return out;
  }
  static int dereg(ibv_mr* mr) {
    fabric().registered -= mr->length;
    fabric().mrs_.erase(mr->lkey);
    return 0;
  }

  // The region has another key afterwards, as with some providers.
  static int rereg(ibv_mr* base, int flags, ibv_pd* pd, void* start, size_t length, int access) {
    auto node = fabric().mrs_.extract(base->lkey);
    Mr& mr = *node.mapped();
    if ((flags & IBV_REREG_MR_CHANGE_PD) != 0)
      base->pd = pd;
    if ((flags & IBV_REREG_MR_CHANGE_ACCESS) != 0)
      mr.access = static_cast<unsigned>(access);
    if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0) {
      fabric().registered += length - base->length;
      base->addr = start;
      base->length = length;
      mr.iova = reinterpret_cast<uintptr_t>(start);
    }
    node.key() = base->lkey = base->rkey = fabric().next_key_++;
    fabric().mrs_.insert(std::move(node));
    return 0;
  }

  // The bytes that key and range name; null: a key, range or right is wrong.
  static std::byte* bytes(uint32_t key, const ibv_pd* pd, uint64_t address, uint64_t length,
                          unsigned right) {
    const auto it = fabric().mrs_.find(key);
    if (it == fabric().mrs_.end())
      return nullptr;
    const Mr& mr = *it->second;
    if (mr.mr.pd != pd || (mr.access & right) != right || address < mr.iova ||
        length > mr.mr.length || address - mr.iova > mr.mr.length - length)
      return nullptr;
    return static_cast<std::byte*>(mr.mr.addr) + (address - mr.iova);
  }

  static void complete(Qp& qp, ibv_cq* cq, uint64_t wr_id, ibv_wc_status status,
                       ibv_wc_opcode opcode, uint32_t length = 0, bool solicited = false) {
    ibv_wc wc{};
    wc.wr_id = wr_id;
    wc.status = status;
    wc.opcode = opcode;
    wc.byte_len = length;
    wc.qp_num = qp.qp.qp_num;
    of(cq).completions.push_back(wc);
    auto& armed = of(cq).armed;
    if (armed == Cq::Armed::any ||
        (armed == Cq::Armed::solicited && (solicited || status != IBV_WC_SUCCESS))) {
      armed = Cq::Armed::no;
      ++of(cq).events;
    }
  }
  static int req_notify_cq(ibv_cq* cq, int solicited_only) {
    auto& armed = of(cq).armed;
    armed = std::max(armed, solicited_only != 0 ? Cq::Armed::solicited : Cq::Armed::any);
    return 0;
  }

  static bool gather(const Qp& qp, const ibv_send_wr& wr, std::vector<std::byte>& out) {
    for (int i = 0; i < wr.num_sge; ++i) {
      const ibv_sge& sge = wr.sg_list[i];
      const auto* from = (wr.send_flags & IBV_SEND_INLINE) != 0
                             ? reinterpret_cast<const std::byte*>(sge.addr)
                             : bytes(sge.lkey, qp.qp.pd, sge.addr, sge.length, 0);
      if (from == nullptr)
        return false;
      out.insert(out.end(), from, from + sge.length);
    }
    return true;
  }
  static bool scatter(const Qp& qp, const ibv_sge* sges, size_t count, const std::byte* from,
                      size_t left) {
    for (size_t i = 0; i < count && left != 0; ++i) {
      const size_t n = std::min<size_t>(left, sges[i].length);
      auto* to = bytes(sges[i].lkey, qp.qp.pd, sges[i].addr, n, IBV_ACCESS_LOCAL_WRITE);
      if (to == nullptr)
        return false;
      memcpy(to, from, n);
      from += n;
      left -= n;
    }
    return left == 0;
  }

  static ibv_wc_status fetch_and_add(Qp& qp, const Qp& peer, const ibv_send_wr& wr) {
    auto* there =
        bytes(wr.wr.atomic.rkey, peer.qp.pd, wr.wr.atomic.remote_addr, 8, IBV_ACCESS_REMOTE_ATOMIC);
    if ((peer.access & IBV_ACCESS_REMOTE_ATOMIC) == 0 || there == nullptr)
      return IBV_WC_REM_ACCESS_ERR;
    uint64_t was = 0;
    memcpy(&was, there, sizeof was);
    const uint64_t now = was + wr.wr.atomic.compare_add;
    memcpy(there, &now, sizeof now);
    return scatter(qp, wr.sg_list, static_cast<size_t>(wr.num_sge),
                   reinterpret_cast<const std::byte*>(&was), sizeof was)
               ? IBV_WC_SUCCESS
               : IBV_WC_LOC_PROT_ERR;
  }

  static ibv_wc_status carry_out(Qp& qp, Qp& peer, const ibv_send_wr& wr, uint32_t& length) {
    std::vector<std::byte> data;
    const bool reading = wr.opcode == IBV_WR_RDMA_READ;
    if (wr.opcode == IBV_WR_BIND_MW)
      return IBV_WC_SUCCESS;
    for (int i = 0; i < wr.num_sge; ++i)
      length += wr.sg_list[i].length;
    if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
      return fetch_and_add(qp, peer, wr);
    if (length > FakeFabric::message_max)
      return IBV_WC_LOC_LEN_ERR;
    if (!reading && !gather(qp, wr, data))
      return IBV_WC_LOC_PROT_ERR;
    if (reading || wr.opcode == IBV_WR_RDMA_WRITE || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
      const unsigned right = reading ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
      if ((peer.access & right) == 0)
        return IBV_WC_REM_ACCESS_ERR;
      if (length != 0) {
        auto* there = bytes(wr.wr.rdma.rkey, peer.qp.pd, wr.wr.rdma.remote_addr, length, right);
        if (there == nullptr)
          return IBV_WC_REM_ACCESS_ERR;
        if (reading)
          return scatter(qp, wr.sg_list, static_cast<size_t>(wr.num_sge), there, length)
                     ? IBV_WC_SUCCESS
                     : IBV_WC_LOC_PROT_ERR;
        memcpy(there, data.data(), length);
      }
      if (wr.opcode != IBV_WR_RDMA_WRITE_WITH_IMM)
        return IBV_WC_SUCCESS;
    }
    if (peer.receives().empty())
      return IBV_WC_RNR_RETRY_EXC_ERR;
    const auto receive = std::move(peer.receives().front());
    peer.receives().pop_front();
    const bool immediate = wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (!immediate &&
        !scatter(peer, receive.sges.data(), receive.sges.size(), data.data(), length)) {
      complete(peer, peer.qp.recv_cq, receive.wr_id, IBV_WC_LOC_LEN_ERR, IBV_WC_RECV);
      fail(peer);
      return IBV_WC_REM_INV_REQ_ERR;
    }
    complete(peer, peer.qp.recv_cq, receive.wr_id, IBV_WC_SUCCESS,
             immediate ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV, length,
             (wr.send_flags & IBV_SEND_SOLICITED) != 0);
    if (immediate || wr.opcode == IBV_WR_SEND_WITH_IMM) {
      of(peer.qp.recv_cq).completions.back().wc_flags = IBV_WC_WITH_IMM;
      of(peer.qp.recv_cq).completions.back().imm_data = wr.imm_data;
    }
    return IBV_WC_SUCCESS;
  }

  static void fail(Qp& qp) {
    qp.qp.state = IBV_QPS_ERR;
    flush_receives(qp);
  }
  static void flush_receives(Qp& qp) {
    for (const auto& receive : std::exchange(qp.own_receives, {}))
      complete(qp, qp.qp.recv_cq, receive.wr_id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV);
  }

  static int post_send(ibv_qp* base, ibv_send_wr* wr, ibv_send_wr** bad) {
    Qp& qp = of(base);
    ++fabric().post_calls;
    for (; wr != nullptr; wr = wr->next) {
      if (qp.qp.state < IBV_QPS_RTS || wr->num_sge < 0 || wr->num_sge > elements_most) {
        *bad = wr;
        return EINVAL;
      }
      if (fabric().refuse_post != 0 && --fabric().refuse_post == 0) {
        *bad = wr;
        return ENOMEM;
      }
      ++fabric().posted;
      fabric().last_send = wr->wr_id;
      if (wr->num_sge > 0)
        fabric().last_element = wr->sg_list[0];
      if (fabric().stalled || qp.qp.qp_num == fabric().stuck)
        continue;
      uint32_t length = 0;
      ibv_wc_status status = IBV_WC_WR_FLUSH_ERR;
      if (qp.qp.state == IBV_QPS_RTS) {
        const auto peer = fabric().qps_.find(qp.dest);
        status = peer == fabric().qps_.end() || peer->second->qp.state == IBV_QPS_ERR ||
                         peer->second->qp.state == IBV_QPS_RESET
                     ? IBV_WC_RETRY_EXC_ERR
                     : carry_out(qp, *peer->second, *wr, length);
        const bool refused = status == IBV_WC_REM_ACCESS_ERR;
        if ((refused || status == IBV_WC_RETRY_EXC_ERR) && qp.qp.qp_type == IBV_QPT_UC)
          status = IBV_WC_SUCCESS; // nobody says so
        else if (refused)
          fail(*peer->second);
        if (status != IBV_WC_SUCCESS && qp.qp.qp_type == IBV_QPT_UC)
          qp.qp.state = fabric().knows_sqe ? IBV_QPS_SQE : IBV_QPS_ERR;
        else if (status != IBV_WC_SUCCESS)
          fail(qp);
      }
      if (status != IBV_WC_SUCCESS || qp.all_signaled || (wr->send_flags & IBV_SEND_SIGNALED) != 0)
        complete(qp, qp.qp.send_cq, wr->wr_id, status,
                 wr->opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE, length);
    }
    return 0;
  }
  static int bind_mw(ibv_qp* base, ibv_mw* mw, ibv_mw_bind* bind) {
    ibv_send_wr wr{};
    wr.wr_id = bind->wr_id;
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = bind->send_flags;
    wr.bind_mw.rkey = mw->rkey = ibv_inc_rkey(mw->rkey);
    fabric().bound.push_back(mw->rkey);
    ibv_send_wr* bad = nullptr;
    return post_send(base, &wr, &bad);
  }
  static int post_recv(ibv_qp* base, ibv_recv_wr* wr, ibv_recv_wr**) {
    Qp& qp = of(base);
    for (; wr != nullptr; wr = wr->next) {
      qp.own_receives.push_back({wr->wr_id, {wr->sg_list, wr->sg_list + wr->num_sge}});
      qp.last_receive = wr->wr_id;
    }
    if (qp.qp.state == IBV_QPS_ERR)
      flush_receives(qp);
    return 0;
  }
  static int post_srq_recv(ibv_srq* base, ibv_recv_wr* wr, ibv_recv_wr**) {
    for (; wr != nullptr; wr = wr->next) {
      reinterpret_cast<FakeFabric::Srq*>(base)->receives.push_back(
          {wr->wr_id, {wr->sg_list, wr->sg_list + wr->num_sge}});
      fabric().last_shared_receive = wr->wr_id;
    }
    return 0;
  }
  static int poll_cq(ibv_cq* base, int most, ibv_wc* wc) {
    if (const auto poll = std::exchange(fabric().poll, nullptr))
      poll();
    Cq& cq = of(base);
    int n = 0;
    for (; n < most && !cq.completions.empty(); ++n) {
      wc[n] = cq.completions.front();
      cq.completions.pop_front();
    }
    return n;
  }

  static ibv_cq* create_cq(ibv_context* context, int cqe, void*, ibv_comp_channel* channel, int) {
    if (cqe > fabric().cqe_max_) {
      errno = EINVAL;
      return nullptr;
    }
    auto* cq = new Cq;
    cq->cq.channel = channel;
    cq->cq.context = context;
    cq->cq.cqe = cqe;
    return &cq->cq;
  }
  static ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
    auto* qp = new Qp;
    qp->qp.context = pd->context;
    qp->qp.pd = pd;
    qp->qp.send_cq = attr->send_cq;
    qp->qp.recv_cq = attr->recv_cq;
    qp->qp.qp_type = attr->qp_type;
    qp->qp.state = IBV_QPS_RESET;
    qp->qp.srq = attr->srq;
    qp->qp.qp_num = fabric().next_qpn++;
    qp->all_signaled = attr->sq_sig_all != 0;
    fabric().qps_[qp->qp.qp_num] = qp;
    fabric().made_last = &qp->qp;
    return &qp->qp;
  }
  static int modify_qp(ibv_qp* base, ibv_qp_attr* attr, int mask) {
    if (fabric().modify)
      if (const int why = fabric().modify(); why != 0)
        return why;
    Qp& qp = of(base);
    if ((mask & IBV_QP_ACCESS_FLAGS) != 0)
      qp.access = attr->qp_access_flags;
    if ((mask & IBV_QP_DEST_QPN) != 0)
      qp.dest = attr->dest_qp_num;
    if ((mask & IBV_QP_STATE) == 0)
      return 0;
    if (attr->qp_state == IBV_QPS_ERR)
      fail(qp);
    if (attr->qp_state == IBV_QPS_RESET)
      end(qp);
    qp.qp.state = attr->qp_state;
    return 0;
  }
  // It is reset or destroyed.
  static void end(Qp& qp) {
    qp.own_receives.clear();
    for (ibv_cq* cq : {qp.qp.send_cq, qp.qp.recv_cq})
      if (fabric().drops_completions)
        std::erase_if(of(cq).completions,
                      [&](const ibv_wc& wc) { return wc.qp_num == qp.qp.qp_num; });
  }
  static int destroy_qp(ibv_qp* base) {
    if (fabric().destroy)
      fabric().destroy();
    if (fabric().flushes_at_destroy)
      flush_receives(of(base));
    end(of(base));
    fabric().qps_.erase(base->qp_num);
    delete &of(base);
    return 0;
  }
};

const provider::Real& FakeFabric::real() {
  static const provider::Real table = [] {
    provider::Real r;
    r.ibv_alloc_pd = [](ibv_context* context) {
      auto* pd = new ibv_pd{};
      pd->context = context;
      pd->handle = the_fabric->next_pd_++;
      return pd;
    };
    r.ibv_dealloc_pd = [](ibv_pd* pd) {
      const auto& all = the_fabric->mrs_;
      if (std::any_of(all.begin(), all.end(),
                      [pd](const auto& e) { return e.second->mr.pd == pd; }))
        return EBUSY;
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
      const auto& all = the_fabric->qps_;
      if (std::any_of(all.begin(), all.end(), [cq](const auto& e) {
            return e.second->qp.send_cq == cq || e.second->qp.recv_cq == cq;
          }))
        return EBUSY;
      delete &Verbs::of(cq);
      return 0;
    };
    r.ibv_create_srq = [](ibv_pd* pd, ibv_srq_init_attr*) {
      auto* srq = new FakeFabric::Srq;
      srq->srq.context = pd->context;
      srq->srq.pd = pd;
      return &srq->srq;
    };
    r.ibv_destroy_srq = [](ibv_srq* srq) {
      delete reinterpret_cast<FakeFabric::Srq*>(srq);
      return 0;
    };
    r.ibv_create_qp = Verbs::create_qp;
    r.ibv_modify_qp = Verbs::modify_qp;
    r.ibv_query_qp = [](ibv_qp* qp, ibv_qp_attr* attr, int, ibv_qp_init_attr*) {
      attr->qp_state = qp->state;
      if (const auto looked = std::exchange(the_fabric->looked, nullptr))
        looked();
      return 0;
    };
    r.ibv_get_async_event = [](ibv_context*, ibv_async_event* event) {
      *event = the_fabric->event;
      return 0;
    };
    r.ibv_ack_async_event = [](ibv_async_event*) {
      ++the_fabric->acknowledged;
      the_fabric->event = {};
    };
    r.ibv_destroy_qp = Verbs::destroy_qp;
    r.ibv_query_port = [](ibv_context*, uint8_t, _compat_ibv_port_attr* attr) {
      reinterpret_cast<ibv_port_attr*>(attr)->max_msg_sz = FakeFabric::message_max;
      return 0;
    };
    r.ibv_query_gid = [](ibv_context*, uint8_t, int, ibv_gid* gid) {
      *gid = {};
      return 0;
    };
    r.ibv_open_device = [](ibv_device* device) {
      const auto& all = the_fabric->devices_;
      const auto it = std::find_if(all.begin(), all.end(),
                                   [device](const auto& d) { return &d->device == device; });
      return it == all.end() ? nullptr : &(*it)->extended.context;
    };
    r.ibv_close_device = [](ibv_context*) { return 0; };
    return r;
  }();
  return table;
}

FakeFabric::FakeFabric(int cqe_max) : cqe_max_(cqe_max) {
  the_fabric = this;
}

FakeFabric::~FakeFabric() {
  the_fabric = nullptr;
}

uint64_t FakeFabric::events(const ibv_cq* cq) {
  return Verbs::of(const_cast<ibv_cq*>(cq)).events;
}

bool FakeFabric::reaches(uint32_t key, const void* byte) const {
  const auto it = mrs_.find(key);
  if (it == mrs_.end())
    return false;
  const ibv_mr& mr = it->second->mr;
  const auto at = reinterpret_cast<uintptr_t>(byte) - reinterpret_cast<uintptr_t>(mr.addr);
  return at < mr.length;
}

void FakeFabric::complete(ibv_cq* cq, const ibv_wc& wc) {
  Verbs::of(cq).completions.push_back(wc);
}

uint64_t FakeFabric::last_receive(ibv_qp* qp) {
  return Verbs::of(qp).last_receive;
}

ibv_device* FakeFabric::device() {
  auto fresh = std::make_unique<Device>();
  strcpy(fresh->device.name, ("fake" + std::to_string(devices_.size())).c_str());
  ibv_context& context = fresh->extended.context;
  context.device = &fresh->device;
  context.ops.post_send = Verbs::post_send;
  context.ops.bind_mw = Verbs::bind_mw;
  context.ops.post_recv = Verbs::post_recv;
  context.ops.post_srq_recv = Verbs::post_srq_recv;
  context.ops.poll_cq = Verbs::poll_cq;
  context.ops.req_notify_cq = Verbs::req_notify_cq;
  devices_.push_back(std::move(fresh));
  return &devices_.back()->device;
}

} // namespace adverb::test
