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

class Responder {
public:
  Responder(Qp& requester, QpSlot& target, uint32_t owner);

  // Whether the target would take a packet of this connection at all; otherwise it is silent.
  bool listening(bool reliable, uint32_t psn);
  Reply serve(SendWqe& wqe, const Ranges& local);
  // Fetches for a READ without any of its consequences; false when it would be refused.
  bool peek(SendWqe& wqe, const Ranges& local);

  bool hears_datagram(const SendWqe& wqe);
  Reply deliver_datagram(const SendWqe& wqe, const Ranges& local);

private:
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
  Work receiving() const;
  void complete_receive(const SendWqe& wqe, ibv_wc_status status, uint32_t opcode, uint32_t bytes,
                        uint32_t wc_flags);
  bool invalidate(uint32_t key);

  Qp& requester_;
  Process& process_;
  QpSlot& target_;
  uint32_t owner_;
  uint32_t incarnation_;
  pid_t pid_;
  char* arena_ = nullptr;
  bool on_demand_ = false; // what the request reaches, once that has been checked
};

} // namespace adverb::loopback
