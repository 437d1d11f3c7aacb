// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "device.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

namespace sim {

namespace {
Fabric* the_fabric = nullptr; // provider functions are given no other way to it
} // namespace

struct Fabric::Device {
  ibv_device device{};
  verbs_context extended{};
};

struct Fabric::Mr {
  ibv_mr mr{};
  uint64_t iova = 0;
  unsigned access = 0;
};

struct Fabric::Cq {
  ibv_cq cq{};
  std::deque<ibv_wc> completions;
  bool armed = false;
  uint32_t events = 0; // that nobody has taken
};

struct Fabric::Request {
  ibv_send_wr wr{};
  std::vector<ibv_sge> sges;
  std::vector<std::byte> inlined;
  enum class Stage : uint8_t { posted, carried_out, landed } stage = Stage::posted;
  ibv_wc_status status = IBV_WC_SUCCESS;
  uint32_t length = 0;
  std::vector<std::byte> coming; // of a READ or atomic

  bool fetches() const {
    return wr.opcode == IBV_WR_RDMA_READ || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
           wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
  }
};

struct Fabric::Qp {
  ibv_qp qp{};
  unsigned access = 0;
  uint32_t dest = 0;
  bool all_signaled = false;
  ibv_qp_cap cap{};
  std::deque<Request> requests;
  struct Receive {
    uint64_t wr_id;
    std::vector<ibv_sge> sges;
  };
  std::deque<Receive> receives;
  std::deque<ibv_wc> arrived; // completions of receives, on their way to the queue
};

struct Verbs {
  using Cq = Fabric::Cq;
  using Qp = Fabric::Qp;
  using Mr = Fabric::Mr;
  using Request = Fabric::Request;
  using Stage = Request::Stage;

  static Fabric& fabric() { return *the_fabric; }
  static Qp& of(ibv_qp* qp) { return *reinterpret_cast<Qp*>(qp); }
  static Cq& of(ibv_cq* cq) { return *reinterpret_cast<Cq*>(cq); }

  static ibv_mr* reg(ibv_pd* pd, void* start, size_t length, uint64_t iova, int access) {
    auto mr = std::make_unique<Mr>();
    mr->mr.context = pd->context;
    mr->mr.pd = pd;
    mr->mr.addr = start;
    mr->mr.length = length;
    mr->mr.lkey = mr->mr.rkey = fabric().next_key_++;
    mr->iova = iova;
    mr->access = static_cast<unsigned>(access);
    auto* out = &mr->mr;
    fabric().mrs_[out->lkey] = std::move(mr);
    return out;
  }
  static int dereg(ibv_mr* mr) {
    if (fabric().mrs_.erase(mr->lkey) == 0)
      fabric().misuse.emplace_back("a region is deregistered that is none");
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

  static void complete(ibv_cq* base, const ibv_wc& wc) {
    Cq& cq = of(base);
    if (fabric().loud)
      printf("        device: queue pair %u completes %llx with status %d\n", wc.qp_num,
             static_cast<unsigned long long>(wc.wr_id), wc.status);
    if (cq.completions.size() >= static_cast<size_t>(cq.cq.cqe))
      fabric().misuse.emplace_back("a completion queue overruns");
    cq.completions.push_back(wc);
    if (std::exchange(cq.armed, false) && cq.cq.channel != nullptr)
      ++cq.events;
  }

  static bool gather(const Qp& qp, const Request& r, std::vector<std::byte>& out) {
    if ((r.wr.send_flags & IBV_SEND_INLINE) != 0) {
      out = r.inlined;
      return true;
    }
    for (const ibv_sge& sge : r.sges) {
      const auto* from = bytes(sge.lkey, qp.qp.pd, sge.addr, sge.length, 0);
      if (from == nullptr)
        return false;
      out.insert(out.end(), from, from + sge.length);
    }
    return true;
  }
  static bool scatter(const Qp& qp, const std::vector<ibv_sge>& sges,
                      const std::vector<std::byte>& data) {
    size_t done = 0;
    for (const ibv_sge& sge : sges) {
      const size_t n = std::min<size_t>(data.size() - done, sge.length);
      if (n == 0)
        continue;
      auto* to = bytes(sge.lkey, qp.qp.pd, sge.addr, n, IBV_ACCESS_LOCAL_WRITE);
      if (to == nullptr)
        return false;
      memcpy(to, data.data() + done, n);
      done += n;
    }
    return done == data.size();
  }

  // Carries it out at both ends.
  static ibv_wc_status carry_out(Qp& qp, Qp& peer, Request& r) {
    const bool atomic = r.fetches() && r.wr.opcode != IBV_WR_RDMA_READ;
    const bool one_sided = r.wr.opcode != IBV_WR_SEND && r.wr.opcode != IBV_WR_SEND_WITH_IMM;
    std::vector<std::byte> data;
    if (!r.fetches() && !gather(qp, r, data))
      return IBV_WC_LOC_PROT_ERR;
    if (one_sided) {
      const unsigned right = atomic        ? IBV_ACCESS_REMOTE_ATOMIC
                             : r.fetches() ? IBV_ACCESS_REMOTE_READ
                                           : IBV_ACCESS_REMOTE_WRITE;
      const uint64_t address = atomic ? r.wr.wr.atomic.remote_addr : r.wr.wr.rdma.remote_addr;
      const uint32_t key = atomic ? r.wr.wr.atomic.rkey : r.wr.wr.rdma.rkey;
      std::byte* there = nullptr;
      if (r.length != 0) {
        there = bytes(key, peer.qp.pd, address, r.length, right);
        if (there == nullptr || (peer.access & right) == 0 || (atomic && address % 8 != 0))
          return IBV_WC_REM_ACCESS_ERR;
      }
      if (r.fetches()) {
        r.coming.assign(there, there + r.length);
        if (atomic) {
          uint64_t value = 0;
          memcpy(&value, there, sizeof value);
          if (r.wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
            value += r.wr.wr.atomic.compare_add;
          else if (value == r.wr.wr.atomic.compare_add)
            value = r.wr.wr.atomic.swap;
          memcpy(there, &value, sizeof value);
        }
        return IBV_WC_SUCCESS;
      }
      if (r.length != 0)
        memcpy(there, data.data(), r.length);
      if (r.wr.opcode == IBV_WR_RDMA_WRITE)
        return IBV_WC_SUCCESS;
    }
    const auto receive = std::move(peer.receives.front());
    peer.receives.pop_front();
    ibv_wc wc{};
    wc.wr_id = receive.wr_id;
    wc.qp_num = peer.qp.qp_num;
    wc.opcode = one_sided ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    wc.byte_len = r.length;
    if (r.wr.opcode == IBV_WR_SEND_WITH_IMM || one_sided) {
      wc.wc_flags = IBV_WC_WITH_IMM;
      wc.imm_data = r.wr.imm_data;
    }
    if (!one_sided && !scatter(peer, receive.sges, data)) {
      wc.status = IBV_WC_LOC_LEN_ERR;
      peer.arrived.push_back(wc);
      fail(peer);
      return IBV_WC_REM_INV_REQ_ERR;
    }
    peer.arrived.push_back(wc);
    return IBV_WC_SUCCESS;
  }

  static void fail(Qp& qp) {
    qp.qp.state = IBV_QPS_ERR;
    for (const auto& receive : qp.receives) {
      ibv_wc wc{};
      wc.wr_id = receive.wr_id;
      wc.qp_num = qp.qp.qp_num;
      wc.status = IBV_WC_WR_FLUSH_ERR;
      wc.opcode = IBV_WC_RECV;
      // Who was never connected is alone with the device, and waits for it.
      if (qp.dest == 0)
        complete(qp.qp.recv_cq, wc);
      else
        qp.arrived.push_back(wc);
    }
    qp.receives.clear();
    // What was carried out and not answered, and what came behind it: the answer no longer counts.
    bool over = false;
    for (Request& r : qp.requests) {
      if (over || (r.stage != Stage::landed && r.status == IBV_WC_SUCCESS))
        r.status = IBV_WC_WR_FLUSH_ERR; // also where it has failed: only the first says why
      over = over || r.status != IBV_WC_SUCCESS;
      r.stage = Stage::landed;
    }
  }

  static ibv_wc_opcode opcode_of(const Request& r) {
    switch (r.wr.opcode) {
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return IBV_WC_SEND;
    default:
      return IBV_WC_RDMA_WRITE;
    }
  }

  // Whether `at` could be carried out now, with what stands before it.
  static bool may_go(const Qp& qp, size_t at, const Qp* peer) {
    const Request& r = qp.requests[at];
    bool first = true; // nothing before it is left to be carried out
    bool reads_only = true;
    bool fetched = true;
    for (size_t i = 0; i < at; ++i) {
      const Request& other = qp.requests[i];
      if (other.status != IBV_WC_SUCCESS)
        return false;
      first = first && other.stage != Stage::posted;
      reads_only =
          reads_only && (other.stage != Stage::posted || other.wr.opcode == IBV_WR_RDMA_READ);
      fetched = fetched && (!other.fetches() || other.stage == Stage::landed);
    }
    if ((r.wr.send_flags & IBV_SEND_FENCE) != 0 && !fetched)
      return false;
    // What has no fence may pass a READ, unless it fetches itself.
    if (!first && (r.fetches() || !reads_only))
      return false;
    if (peer == nullptr || peer->qp.state == IBV_QPS_ERR || peer->qp.state == IBV_QPS_RESET)
      return first && fetched; // to find that out
    if (peer->qp.state == IBV_QPS_INIT)
      return false; // its packets are dropped, and sent again
    const bool takes = r.wr.opcode == IBV_WR_SEND || r.wr.opcode == IBV_WR_SEND_WITH_IMM ||
                       r.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    return !takes || !peer->receives.empty(); // RNR: retried for ever
  }

  static void go(Qp& qp, size_t at, Qp* peer) {
    Request& r = qp.requests[at];
    const bool gone =
        peer == nullptr || peer->qp.state == IBV_QPS_ERR || peer->qp.state == IBV_QPS_RESET;
    const ibv_wc_status status = gone ? IBV_WC_RETRY_EXC_ERR : carry_out(qp, *peer, r);
    r.stage = r.fetches() && status == IBV_WC_SUCCESS ? Stage::carried_out : Stage::landed;
    if (status == IBV_WC_SUCCESS)
      return;
    // What came before is carried out, as it stands before the error; answers to READs come first.
    r.status = status;
    for (size_t i = 0; i < at; ++i) {
      Request& earlier = qp.requests[i]; // only a READ that was passed is not carried out yet
      if (earlier.stage == Stage::posted) {
        earlier.status = gone ? IBV_WC_RETRY_EXC_ERR : carry_out(qp, *peer, earlier);
        earlier.stage = Stage::carried_out;
      }
      land(qp, earlier);
    }
    if (status == IBV_WC_REM_ACCESS_ERR)
      fail(*peer);
    fail(qp);
  }

  static void land(Qp& qp, Request& r) {
    if (r.stage == Stage::carried_out && r.status == IBV_WC_SUCCESS &&
        !scatter(qp, r.sges, r.coming))
      r.status = IBV_WC_LOC_PROT_ERR;
    r.stage = Stage::landed;
  }

  static void finish_first(Qp& qp) {
    const Request r = std::move(qp.requests.front());
    qp.requests.pop_front();
    if (r.status == IBV_WC_SUCCESS && !qp.all_signaled &&
        (r.wr.send_flags & IBV_SEND_SIGNALED) == 0)
      return;
    ibv_wc wc{};
    wc.wr_id = r.wr.wr_id;
    wc.status = r.status;
    wc.opcode = opcode_of(r);
    wc.byte_len = r.fetches() ? r.length : 0;
    wc.qp_num = qp.qp.qp_num;
    complete(qp.qp.send_cq, wc);
  }

  static int post_send(ibv_qp* base, ibv_send_wr* wr, ibv_send_wr** bad) {
    Qp& qp = of(base);
    for (; wr != nullptr; wr = wr->next) {
      if (fabric().loud)
        printf("        device: queue pair %u, state %d, is given opcode %d as %llx\n",
               qp.qp.qp_num, qp.qp.state, wr->opcode, static_cast<unsigned long long>(wr->wr_id));
      if (qp.qp.state != IBV_QPS_RTS && qp.qp.state != IBV_QPS_ERR) {
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
      for (const ibv_sge& sge : r.sges) {
        r.length += sge.length;
        const auto* from = reinterpret_cast<const std::byte*>(sge.addr);
        if ((wr->send_flags & IBV_SEND_INLINE) != 0)
          r.inlined.insert(r.inlined.end(), from, from + sge.length);
      }
      if (qp.qp.state == IBV_QPS_ERR) {
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
      if (qp.receives.size() >= qp.cap.max_recv_wr) {
        *bad = wr;
        return ENOMEM;
      }
      qp.receives.push_back({wr->wr_id, {wr->sg_list, wr->sg_list + wr->num_sge}});
    }
    if (qp.qp.state == IBV_QPS_ERR)
      fail(qp);
    return 0;
  }
  static int poll_cq(ibv_cq* base, int most, ibv_wc* wc) {
    Cq& cq = of(base);
    int n = 0;
    for (; n < most && !cq.completions.empty(); ++n) {
      wc[n] = cq.completions.front();
      cq.completions.pop_front();
    }
    return n;
  }

  static ibv_cq* create_cq(ibv_context* context, int cqe, void*, ibv_comp_channel* channel, int) {
    // Room for the program's completions, the kick's and one marker: others wait for it.
    const int cqe_max = 512 + (channel != nullptr ? 4 : 1);
    if (cqe > cqe_max) {
      errno = EINVAL;
      return nullptr;
    }
    auto* cq = new Cq;
    cq->cq.context = context;
    cq->cq.cqe = cqe;
    cq->cq.channel = channel;
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
    auto& freed = fabric().free_qpns_;
    qp->qp.qp_num = freed.empty() ? fabric().next_qpn_++ : freed.back();
    if (!freed.empty())
      freed.pop_back();
    qp->all_signaled = attr->sq_sig_all != 0;
    qp->cap = attr->cap;
    fabric().qps_[qp->qp.qp_num] = qp;
    return &qp->qp;
  }
  static int modify_qp(ibv_qp* base, ibv_qp_attr* attr, int mask) {
    Qp& qp = of(base);
    if ((mask & IBV_QP_ACCESS_FLAGS) != 0)
      qp.access = attr->qp_access_flags;
    if ((mask & IBV_QP_DEST_QPN) != 0)
      qp.dest = attr->dest_qp_num;
    if ((mask & IBV_QP_STATE) == 0)
      return 0;
    if (attr->qp_state == IBV_QPS_ERR)
      fail(qp);
    if (attr->qp_state == IBV_QPS_RESET) {
      qp.requests.clear();
      qp.receives.clear();
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

  static void offer(Steps& steps) {
    for (const auto& [number, entry] : fabric().qps_) {
      Qp& qp = *entry;
      const auto found = fabric().qps_.find(qp.dest);
      Qp* peer = found == fabric().qps_.end() ? nullptr : found->second;
      // Another's by now: packets with numbers of an old connection are not taken.
      if (peer != nullptr && peer->qp.state >= IBV_QPS_RTR && peer->dest != number)
        peer = nullptr;
      if (qp.qp.state == IBV_QPS_RTS)
        for (size_t at = 0; at < qp.requests.size(); ++at)
          if (qp.requests[at].stage == Stage::posted) {
            if (may_go(qp, at, peer))
              steps.emplace_back(0, [&qp, at, peer] { go(qp, at, peer); });
            else if (!qp.requests[at].fetches())
              break; // nothing passes it
          }
      const auto landing = std::ranges::find_if(
          qp.requests, [](const Request& r) { return r.fetches() && r.stage != Stage::landed; });
      if (landing != qp.requests.end() && landing->stage == Stage::carried_out)
        steps.emplace_back(0, [&qp, &r = *landing] {
          land(qp, r);
          if (r.status != IBV_WC_SUCCESS)
            fail(qp);
        });
      if (!qp.requests.empty() && qp.requests.front().stage == Stage::landed)
        steps.emplace_back(0, [&qp] { finish_first(qp); });
      if (!qp.arrived.empty())
        steps.emplace_back(0, [&qp] {
          complete(qp.qp.recv_cq, qp.arrived.front());
          qp.arrived.pop_front();
        });
    }
  }
};

void Fabric::offer(Steps& steps) {
  Verbs::offer(steps);
}

const adverb::provider::Real& Fabric::real() {
  static const adverb::provider::Real table = [] {
    adverb::provider::Real r;
    r.ibv_alloc_pd = [](ibv_context* context) {
      auto* pd = new ibv_pd{};
      pd->context = context;
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
    r.ibv_create_cq = Verbs::create_cq;
    r.ibv_destroy_cq = [](ibv_cq* cq) {
      delete &Verbs::of(cq);
      return 0;
    };
    r.ibv_create_qp = Verbs::create_qp;
    r.ibv_modify_qp = Verbs::modify_qp;
    r.ibv_destroy_qp = Verbs::destroy_qp;
    r.ibv_query_qp = [](ibv_qp* qp, ibv_qp_attr* attr, int, ibv_qp_init_attr*) {
      attr->qp_state = qp->state;
      return 0;
    };
    r.ibv_query_port = [](ibv_context*, uint8_t, _compat_ibv_port_attr* attr) {
      reinterpret_cast<ibv_port_attr*>(attr)->max_msg_sz = 1U << 30;
      return 0;
    };
    r.ibv_query_gid = [](ibv_context*, uint8_t, int, ibv_gid* gid) {
      *gid = {};
      return 0;
    };
    r.ibv_open_device = [](ibv_device* device) {
      const auto& all = the_fabric->devices_;
      const auto it =
          std::ranges::find_if(all, [device](const auto& d) { return &d->device == device; });
      return it == all.end() ? nullptr : &(*it)->extended.context;
    };
    r.ibv_close_device = [](ibv_context*) { return 0; };
    return r;
  }();
  return table;
}

bool Fabric::take_event(ibv_cq* base) {
  auto& cq = Verbs::of(base);
  if (cq.events == 0)
    return false;
  --cq.events;
  return true;
}

Fabric::Fabric() {
  the_fabric = this;
}

Fabric::~Fabric() {
  the_fabric = nullptr;
}

ibv_device* Fabric::device() {
  auto fresh = std::make_unique<Device>();
  strcpy(fresh->device.name, ("sim" + std::to_string(devices_.size())).c_str());
  ibv_context& context = fresh->extended.context;
  context.device = &fresh->device;
  context.ops.post_send = Verbs::post_send;
  context.ops.post_recv = Verbs::post_recv;
  context.ops.poll_cq = Verbs::poll_cq;
  context.ops.req_notify_cq = [](ibv_cq* cq, int) {
    Verbs::of(cq).armed = true;
    return 0;
  };
  devices_.push_back(std::move(fresh));
  return &devices_.back()->device;
}

} // namespace sim
