// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The life of a request at the device, from its post to its completion.
#include "device_parts.h"
#include "pages.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace sim {

namespace {

ibv_wc_opcode opcode_of(ibv_wr_opcode opcode) {
  switch (opcode) {
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

} // namespace

std::byte* Requests::bytes(uint32_t key, const ibv_pd* pd, uint64_t address, uint64_t length,
                           unsigned right) {
  const auto it = Fabric::present().mrs_.find(key);
  if (it == Fabric::present().mrs_.end())
    return nullptr;
  const Mr& mr = *it->second;
  if (mr.mr.pd != pd || (mr.access & right) != right || address < mr.iova ||
      length > mr.mr.length || address - mr.iova > mr.mr.length - length)
    return nullptr;
  return Pages::kept(static_cast<std::byte*>(mr.mr.addr) + (address - mr.iova));
}

void Requests::complete(ibv_cq* base, const ibv_wc& wc) {
  Cq& cq = *reinterpret_cast<Cq*>(base);
  if (Fabric::present().loud)
    printf("        device: queue pair %u completes %llx with status %d\n", wc.qp_num,
           static_cast<unsigned long long>(wc.wr_id), wc.status);
  if (cq.completions.size() >= static_cast<size_t>(cq.cq.cqe))
    Fabric::present().misuse.emplace_back("a completion queue overruns");
  cq.completions.push_back(wc);
  if (std::exchange(cq.armed, false) && cq.cq.channel != nullptr)
    ++cq.events;
}

bool Requests::gather(const Qp& qp, const Request& r, std::vector<std::byte>& out) {
  if ((r.wr.send_flags & IBV_SEND_INLINE) != 0) {
    out.insert(out.end(), r.inlined.begin(), r.inlined.end());
    return true;
  }
  for (const ibv_sge& sge : r.sges) {
    if (sge.length == 0)
      continue;
    const auto* from = bytes(sge.lkey, qp.qp.pd, sge.addr, sge.length, 0);
    if (from == nullptr)
      return false;
    out.insert(out.end(), from, from + sge.length);
  }
  return true;
}
bool Requests::scatter(const Qp& qp, const std::vector<ibv_sge>& sges,
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

ibv_wc_status Requests::carry_out(Qp& qp, Qp& peer, Request& r) {
  const bool atomic = r.fetches() && r.wr.opcode != IBV_WR_RDMA_READ;
  const bool one_sided = r.wr.opcode != IBV_WR_SEND && r.wr.opcode != IBV_WR_SEND_WITH_IMM;
  const bool datagram = qp.qp.qp_type == IBV_QPT_UD;
  if (r.length > Fabric::present().longest && !Fabric::is_linking(qp.qp.context))
    return IBV_WC_LOC_LEN_ERR;
  std::vector<std::byte> data(datagram ? sizeof(ibv_grh) : 0);
  if (!r.fetches() && !gather(qp, r, data))
    return IBV_WC_LOC_PROT_ERR;
  if (one_sided) {
    const unsigned right = atomic        ? IBV_ACCESS_REMOTE_ATOMIC
                           : r.fetches() ? IBV_ACCESS_REMOTE_READ
                                         : IBV_ACCESS_REMOTE_WRITE;
    const uint64_t address = atomic ? r.wr.wr.atomic.remote_addr : r.wr.wr.rdma.remote_addr;
    const uint32_t key = atomic ? r.wr.wr.atomic.rkey : r.wr.wr.rdma.rkey;
    std::byte* there = nullptr;
    if (Fabric::present().reaches)
      Fabric::present().reaches(qp.qp.qp_num, key, address);
    if ((peer.access & right) == 0) // of no bytes, too
      return IBV_WC_REM_ACCESS_ERR;
    if (r.length != 0) {
      there = bytes(key, peer.qp.pd, address, r.length, right);
      if (there == nullptr || (atomic && address % 8 != 0))
        return IBV_WC_REM_ACCESS_ERR;
    }
    if (r.fetches()) {
      r.coming.resize(r.length);
      fetch(key, address, there, r, false);
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
  const auto receive = std::move(peer.receives().front());
  peer.receives().pop_front();
  ibv_wc wc{};
  wc.wr_id = receive.wr_id;
  wc.qp_num = peer.qp.qp_num;
  wc.opcode = one_sided ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  wc.byte_len = one_sided ? r.length : static_cast<uint32_t>(data.size());
  if (r.wr.opcode == IBV_WR_SEND_WITH_IMM || one_sided) {
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.imm_data = r.wr.imm_data;
  }
  wc.wc_flags |= datagram ? unsigned{IBV_WC_GRH} : 0U;
  if (!one_sided && !scatter(peer, receive.sges, data)) {
    wc.status = IBV_WC_LOC_LEN_ERR;
    peer.arrived.push_back(wc);
    fail(peer);
    return IBV_WC_REM_INV_REQ_ERR;
  }
  peer.arrived.push_back(wc);
  return IBV_WC_SUCCESS;
}

void Requests::fail(Qp& qp) {
  qp.qp.state = IBV_QPS_ERR;
  for (const auto& receive : qp.own) {
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
  qp.own.clear();
  flush_requests(qp);
}

// Packets of these may be on their way, and nobody calls them back: each may land until it is told
// that it has been flushed, or its queue pair is reset.
void Requests::trail(Qp& qp) {
  if (!Fabric::present().trails || qp.qp.state != IBV_QPS_RTS || !qp.reliable())
    return;
  for (Request& r : qp.requests) {
    if (r.stage == Stage::landed && r.status == IBV_WC_SUCCESS)
      continue;
    const Qp* const peer = peer_of(qp, &r);
    if (r.wr.opcode != IBV_WR_RDMA_WRITE || r.stage != Stage::posted || peer == nullptr ||
        (r.length != 0 && bytes(r.wr.wr.rdma.rkey, peer->qp.pd, r.wr.wr.rdma.remote_addr, r.length,
                                IBV_ACCESS_REMOTE_WRITE) == nullptr))
      return;
    r.trailing = true;
  }
}

void Requests::land_trailing(Qp& qp, Request& r) {
  r.trailing = false;
  Qp* const peer = peer_of(qp, &r);
  if (peer == nullptr || peer->qp.state < IBV_QPS_RTR || peer->qp.state == IBV_QPS_ERR)
    return;
  if (carry_out(qp, *peer, r) != IBV_WC_REM_ACCESS_ERR)
    return;
  if (!Fabric::present().ends_keys)
    Fabric::present().misuse.emplace_back("a key ends while a WRITE by it is under way");
  for (Request& later : qp.requests)
    later.trailing = false;
  fail(*peer);
}

// Either is what devices do (IBTA, Volume 1, 10.3.1: SQE; those in software know no SQE).
void Requests::fail_sends(Qp& qp) {
  if (!Fabric::present().stops_sends)
    return fail(qp);
  qp.qp.state = IBV_QPS_SQE;
  flush_requests(qp);
}

void Requests::flush_requests(Qp& qp) {
  // What was carried out and not answered, and what came behind it: the answer no longer counts.
  bool over = false;
  for (Request& r : qp.requests) {
    if (over || (r.stage != Stage::landed && r.status == IBV_WC_SUCCESS))
      r.status = IBV_WC_WR_FLUSH_ERR; // also where it has failed: only the first says why
    over = over || r.status != IBV_WC_SUCCESS;
    r.stage = Stage::landed;
  }
}

bool Requests::may_go(const Qp& qp, size_t at, const Qp* peer) {
  const Request& r = qp.requests[at];
  if (!qp.reliable())
    return at == 0 || qp.requests[at - 1].stage != Stage::posted;
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
  return !takes || peer->has_receive(); // RNR: retried for ever
}

// Out it goes, and nobody says what has become of it: dropped, where it is not to be taken, no
// receive is there, or as it happens.
void Requests::cast(Qp& qp, Request& r, Qp* peer) {
  const bool takes = r.wr.opcode != IBV_WR_RDMA_WRITE;
  const bool there = peer != nullptr && peer->qp.state >= IBV_QPS_RTR &&
                     peer->qp.state != IBV_QPS_ERR && (!takes || peer->has_receive());
  std::vector<std::byte> data;
  r.stage = Stage::landed;
  const bool longer = r.length > Fabric::present().longest;
  if (longer || !gather(qp, r, data)) {
    r.status = longer ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR;
    fail_sends(qp);
  } else if (there && !(Fabric::present().loses && Fabric::present().loses())) {
    carry_out(qp, *peer, r);
  }
}

void Requests::go(Qp& qp, size_t at, Qp* peer) {
  Request& r = qp.requests[at];
  if (!qp.reliable())
    return cast(qp, r, peer);
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

// What a key of those that were looked at has there.
void Requests::fetch(uint32_t key, uint64_t address, const std::byte* there, Request& r,
                     bool again) {
  if (r.length == 0)
    return;
  const Mr& mr = *Fabric::present().mrs_.at(key);
  if (mr.read)
    mr.read(reinterpret_cast<uintptr_t>(mr.mr.addr) + (address - mr.iova), r.coming.data(),
            r.length, again);
  else if (!again)
    std::copy_n(there, r.length, r.coming.begin());
}

// A part of the answer may have been lost, and is made again as long as none behind it has been.
void Requests::fetch_again(const Qp& qp, Request& r) {
  if (r.wr.opcode != IBV_WR_RDMA_READ || r.length == 0)
    return;
  const Qp* const peer = peer_of(qp, &r);
  const auto& rdma = r.wr.wr.rdma;
  const bool last = std::ranges::none_of(qp.requests, [&](const Request& other) {
    return &other > &r && other.fetches() && other.stage != Stage::posted;
  });
  if (last && peer != nullptr && peer->qp.state >= IBV_QPS_RTR && peer->qp.state != IBV_QPS_ERR &&
      bytes(rdma.rkey, peer->qp.pd, rdma.remote_addr, r.length, IBV_ACCESS_REMOTE_READ) != nullptr)
    fetch(rdma.rkey, rdma.remote_addr, nullptr, r, true);
}

void Requests::land(Qp& qp, Request& r) {
  if (r.stage == Stage::carried_out && r.status == IBV_WC_SUCCESS)
    fetch_again(qp, r);
  if (r.stage == Stage::carried_out && r.status == IBV_WC_SUCCESS && !scatter(qp, r.sges, r.coming))
    r.status = IBV_WC_LOC_PROT_ERR;
  r.stage = Stage::landed;
}

void Requests::finish_first(Qp& qp) {
  const Request r = std::move(qp.requests.front());
  qp.requests.pop_front();
  if (r.status == IBV_WC_SUCCESS && !qp.all_signaled && (r.wr.send_flags & IBV_SEND_SIGNALED) == 0)
    return;
  ibv_wc wc{};
  wc.wr_id = r.wr.wr_id;
  wc.status = r.status;
  wc.opcode = opcode_of(r.wr.opcode);
  wc.byte_len = r.fetches() ? r.length : 0;
  wc.qp_num = qp.qp.qp_num;
  complete(qp.qp.send_cq, wc);
}

Fabric::Qp* Requests::peer_of(const Qp& qp, const Request* first) {
  const bool datagram = qp.qp.qp_type == IBV_QPT_UD;
  if (datagram && first == nullptr)
    return nullptr;
  const auto found = Fabric::present().qps_.find(datagram ? first->wr.wr.ud.remote_qpn : qp.dest);
  if (found == Fabric::present().qps_.end())
    return nullptr;
  Qp* const peer = found->second;
  if (datagram)
    return peer->qp.qp_type == IBV_QPT_UD ? peer : nullptr;
  // Another's by now: packets with numbers of an old connection are not taken.
  return peer->qp.state >= IBV_QPS_RTR && peer->dest != qp.qp.qp_num ? nullptr : peer;
}

void Requests::offer(Steps& steps) {
  for (const auto& [number, entry] : Fabric::present().qps_) {
    Qp& qp = *entry;
    const auto first = std::ranges::find(qp.requests, Stage::posted, &Request::stage);
    Qp* const peer = peer_of(qp, first == qp.requests.end() ? nullptr : &*first);
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
    const auto trailing = std::ranges::find(qp.requests, true, &Request::trailing);
    if (trailing != qp.requests.end())
      steps.emplace_back(0, [&qp, &r = *trailing] { land_trailing(qp, r); });
    if (!qp.requests.empty() && qp.requests.front().stage == Stage::landed)
      steps.emplace_back(0, [&qp] { finish_first(qp); });
    if (!qp.arrived.empty())
      steps.emplace_back(0, [&qp] {
        complete(qp.qp.recv_cq, qp.arrived.front());
        qp.arrived.pop_front();
      });
  }
}
} // namespace sim
