// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the device of a schedule has of each object, for its verbs (device.cpp) and for what becomes
// of the requests (device_requests.cpp). Nobody else includes it.
#pragma once

#include "device.h"

#include <deque>
#include <vector>

namespace sim {

struct Fabric::Device {
  bool linking = false; // a second opening of another: adverb's own
  ibv_device device{};
  verbs_context extended{};
};

struct Fabric::Mr {
  ibv_mr mr{};
  uint64_t iova = 0;
  unsigned access = 0;
  ReadView read; // null: what its pages have
  bool by_offset() const { return (access & IBV_ACCESS_ZERO_BASED) != 0; }
};

struct Fabric::Cq {
  union {
    ibv_cq_ex ex{}; // extended or not: they begin alike
    ibv_cq cq;
  };
  std::deque<ibv_wc> completions;
  ibv_wc current{}; // that an extended poll reads
  bool armed = false;
  uint32_t events = 0; // that nobody has taken
};

struct Fabric::Receive {
  uint64_t wr_id;
  std::vector<ibv_sge> sges;
};

struct Fabric::Srq {
  ibv_srq srq{};
  uint32_t depth = 0;
  std::deque<Receive> receives;
};

struct Fabric::Request {
  ibv_send_wr wr{};
  std::vector<ibv_sge> sges;
  std::vector<std::byte> inlined;
  enum class Stage : uint8_t { posted, carried_out, landed } stage = Stage::posted;
  ibv_wc_status status = IBV_WC_SUCCESS;
  uint32_t length = 0;
  std::vector<std::byte> coming; // of a READ or atomic
  bool trailing = false;         // it is flushed, and has left

  bool fetches() const {
    return wr.opcode == IBV_WR_RDMA_READ || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
           wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
  }
};

struct Fabric::Qp {
  union {
    ibv_qp_ex ex{};
    ibv_qp qp;
  };
  unsigned access = 0;
  uint32_t dest = 0;
  bool all_signaled = false;
  ibv_qp_cap cap{};
  std::deque<Request> requests;
  std::deque<Receive> own; // receives, unless it has a shared queue for them
  Srq* srq = nullptr;
  std::deque<ibv_wc> arrived; // completions of receives, on their way to the queue

  std::deque<Receive>& receives() { return srq != nullptr ? srq->receives : own; }
  bool has_receive() const { return srq != nullptr ? !srq->receives.empty() : !own.empty(); }
  bool reliable() const { return qp.qp_type == IBV_QPT_RC; }
};

// What becomes of requests.
struct Requests {
  using Cq = Fabric::Cq;
  using Qp = Fabric::Qp;
  using Mr = Fabric::Mr;
  using Request = Fabric::Request;
  using Stage = Request::Stage;

  // Appends what could happen next.
  static void offer(Steps& steps);
  // The queue pair is in error: what it has is flushed.
  static void fail(Qp& qp);
  static void trail(Qp& qp);      // it is about to be moved there
  static void fail_sends(Qp& qp); // SQE: what it is to receive goes on
  static void complete(ibv_cq* cq, const ibv_wc& wc);

private:
  // The bytes that key and range name; null: a key, range or right is wrong.
  static std::byte* bytes(uint32_t key, const ibv_pd* pd, uint64_t address, uint64_t length,
                          unsigned right);
  static void flush_requests(Qp& qp);
  static bool gather(const Qp& qp, const Request& r, std::vector<std::byte>& out);
  static bool scatter(const Qp& qp, const std::vector<ibv_sge>& sges,
                      const std::vector<std::byte>& data);
  static bool may_go(const Qp& qp, size_t at, const Qp* peer); // with what stands before it
  static Qp* peer_of(const Qp& qp, const Request* first);      // null: nobody is there, or another
  static void go(Qp& qp, size_t at, Qp* peer);
  static void cast(Qp& qp, Request& r, Qp* peer);               // not reliably
  static ibv_wc_status carry_out(Qp& qp, Qp& peer, Request& r); // at both ends
  static void fetch(uint32_t key, uint64_t address, const std::byte* there, Request& r, bool again);
  static void fetch_again(const Qp& qp, Request& r);
  static void land(Qp& qp, Request& r);
  static void land_trailing(Qp& qp, Request& r);
  static void finish_first(Qp& qp);
};

} // namespace sim
