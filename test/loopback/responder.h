// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The target's half of a request, carried out by the initiator's thread on the target's part of
// the fabric. Lives inside one CriticalSection.
#pragma once
#include "engine.h"

namespace adverb::loopback {

struct Reply {
  enum Kind { acknowledged, rnr, gone, refused, requester_error } kind = acknowledged;
  ibv_wc_status status = IBV_WC_SUCCESS; // the requester's, when refused or in error
};

// What the responder knows of the requester. It holds no object of the requester's, so a packet
// can outlive the queue pair that sent it.
struct Origin {
  Process* process; // carries the request out
  uint32_t type;    // ibv_qp_type
  uint32_t qpn;
  uint32_t device;
  uint32_t dest; // the QPN the request is for
  uint32_t qkey; // UD
  union ibv_gid dgid;
  uint8_t sgid_index;
  bool over_link;      // judged as a device judges a packet: one of UC does not name its sender
  bool place_unbacked; // a WRITE_WITH_IMM of UC without a receive places its payload
};

class Responder {
public:
  // `origin` must outlive the responder.
  Responder(const Origin& origin, QpSlot& target, uint32_t owner);

  // Whether the target would take a packet of this connection at all; otherwise it is silent.
  bool listening(bool reliable, uint32_t psn);
  Reply serve(SendWqe& wqe, const Ranges& local);
  // Fetches for a READ without any of its consequences; false when it would be refused.
  bool peek(SendWqe& wqe, const Ranges& local);

  bool hears_datagram();
  Reply deliver_datagram(const SendWqe& wqe, const Ranges& local);

private:
  Reply carry_out(SendWqe& wqe, const Ranges& local);
  Reply fill_datagram(const SendWqe& wqe, const Ranges& local);
  pthread_mutex_t& receive_lock();
  Reply write(SendWqe& wqe, const Ranges& local);
  Reply read(SendWqe& wqe, const Ranges& local);
  Reply atomic(SendWqe& wqe, const Ranges& local);
  Reply send(SendWqe& wqe, const Ranges& local);
  bool attached();
  Reply take_receive();
  Reply check_remote(const SendWqe& wqe, uint64_t length, uint32_t right, uint64_t* address);
  Reply refuse(ibv_event_type event, ibv_wc_status status);
  Reply refuse_receive(ibv_wc_status mine, ibv_wc_status theirs);
  Reply copied(Copied result);
  bool is_on_demand(uint32_t key) const;
  // The target's device translates what the next copy touches. Right before the copy, so that a
  // request that is refused or not ready, and comes again, touches its pages once.
  void translate(const Ranges& remote) {
    if (target_.translations != 0) [[unlikely]]
      translate_each(remote);
  }
  void translate_each(const Ranges& remote);
  Work receiving() const;
  void complete_receive(const SendWqe& wqe, ibv_wc_status status, uint32_t opcode, uint32_t bytes,
                        uint32_t wc_flags);
  bool invalidate(uint32_t key);

  const Origin& origin_;
  Process& process_;
  QpSlot& target_;
  uint32_t owner_;
  uint32_t incarnation_;
  pid_t pid_;
  char* arena_ = nullptr;
  bool on_demand_ = false; // what the request reaches, once that has been checked
};

} // namespace adverb::loopback
