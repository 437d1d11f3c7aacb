// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// An agent owns the verbs objects of one side of a test and does what commands ask, in this
// process. It judges nothing: what a verb returned goes back to the driver. Every command ends in
// bounded time. One thread at a time may call exec(); the agent's own threads (spin, storm) touch
// no table.
#pragma once

#include "wire.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace verify {

class Agent {
public:
  Agent() = default;
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  SideInfo exec(const Open& c);
  Outcome exec(const Reset&);
  Outcome exec(const AllocPd&);
  Outcome exec(const DeallocPd& c);
  BufInfo exec(const MakeBuf& c);
  BufInfo exec(const MapFile& c);
  Outcome exec(const Protect& c);
  Outcome exec(const Fill& c);
  Verdict exec(const Check& c);
  Number exec(const Peek& c);
  Outcome exec(const Poke& c);
  Verdict exec(const AwaitByte& c);
  MrInfo exec(const RegMr& c);
  Outcome exec(const DeregMr& c);
  MrInfo exec(const ReregMr& c);
  CqInfo exec(const CreateCq& c);
  CqInfo exec(const ResizeCq& c);
  Outcome exec(const DestroyCq& c);
  Outcome exec(const ArmCq& c);
  Event exec(const AwaitCqEvent& c);
  WcList exec(const Poll& c);
  Outcome exec(const CreateSrq& c);
  Outcome exec(const LimitSrq& c);
  Outcome exec(const CreateAh& c);
  QpInfo exec(const CreateQp& c);
  Outcome exec(const ModifyQp& c);
  QpState exec(const QueryQp& c);
  Outcome exec(const DestroyQp& c);
  PostResult exec(const PostSend& c);
  PostResult exec(const PostRecv& c);
  Event exec(const NextEvent& c);
  Outcome exec(const StartSpin& c);
  SpinResult exec(const StopSpin&);
  Verdict exec(const Storm& c);
  Outcome exec(const Signal& c);
  SideInfo exec(const Daemonise&);
  Outcome exec(const Exit&);

private:
  struct Cq {
    ibv_cq* cq;
    ibv_cq_ex* ex; // set when it is polled by ibv_start_poll
    ibv_comp_channel* channel;
  };
  struct Qp {
    ibv_qp* qp;
    ibv_qp_ex* ex; // set when it may be posted to by ibv_wr_*
    int type;
  };
  struct Buf {
    void* addr;
    uint64_t size;
  };

  int qp_by_number(uint32_t qpn) const;
  int drain(const Cq& cq, int room, int certain, Wc* out);
  int drain_classic(const Cq& cq, int room, Wc* out);
  int drain_extended(const Cq& cq, int room, int certain, Wc* out);
  PostResult post_classic(const Qp& qp, const PostSend& c);
  PostResult post_extended(const Qp& qp, const PostSend& c);

  bool arm_within_ = false; // of the Poll being served
  ibv_context* context_ = nullptr;
  SideInfo info_ = {};
  std::vector<ibv_pd*> pds_;
  std::vector<Buf> bufs_;
  std::vector<ibv_mr*> mrs_;
  std::vector<Cq> cqs_;
  std::vector<ibv_comp_channel*> channels_;
  std::vector<ibv_srq*> srqs_;
  std::vector<ibv_ah*> ahs_;
  std::vector<Qp> qps_;
  std::thread spinner_;
  std::atomic<bool> spin_stop_{false};
  SpinResult spin_ = {};
};

// Serves commands read from fd until the other end closes it. Returns the exit status.
int serve_agent(int fd);

uint64_t now_ms(); // monotonic

} // namespace verify
