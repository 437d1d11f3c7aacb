// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The engine carries out work requests. The initiator's thread does all of it, the responder's
// part too, through the fabric's tables; the responder's process is only told of events. A QP's
// send queue is run by one thread at a time, in order.
#pragma once
#include "objects.h"

#include <sys/uio.h>

namespace adverb::loopback {

// Runs the send queue until it is empty, blocked or `budget` bytes have moved. Returns when it
// wants to be run again: UINT64_MAX never, 0 at once, else a time in ns.
// With `wait` false it leaves at once when another thread is running it.
uint64_t run_send_queue(Qp& qp, uint64_t budget = UINT64_MAX, bool wait = true);

// A piece of memory of one process, as a list of ranges.
struct Ranges {
  iovec part[2 * kMaxSge + 2];
  uint32_t count = 0;
  uint64_t bytes = 0;
  void add(uint64_t address, uint64_t length) {
    if (length == 0)
      return;
    part[count++] = {reinterpret_cast<void*>(address), length};
    bytes += length;
  }
};

enum class Copied { all, local_fault, remote_fault, gone };

// copy.cpp: by process_vm_*; unmapped memory is an answer, not a crash. The last aligned <= 8
// bytes of the target are stored last and by themselves, unless nobody looks at them before being
// told.
Copied copy_out(pid_t peer, const Ranges& local, const Ranges& remote, bool tail_last = true);
Copied copy_in(pid_t peer, const Ranges& local, const Ranges& remote);

// What a key says about a range. Inside a CriticalSection only.
enum class Verdict { ok, no_key, wrong_pd, no_right, out_of_bounds, not_paged };
// By queue pairs of which type it is used, and for what: IBV_ODP_SUPPORT_*.
struct Work {
  uint32_t type;
  uint32_t operation;
};
Verdict check_key(Process& process, uint32_t owner, uint32_t incarnation, uint32_t pd, uint32_t key,
                  uint64_t address, uint64_t length, uint32_t rights, const Work& work,
                  uint32_t qpn, uint64_t* target);

// complete.cpp
void push_completion(Process& process, uint32_t owner, char* arena, uint64_t cq,
                     const Completion& completion);
void raise_qp_event(Process& process, QpSlot& qp, uint32_t bits);

// odp.cpp
const ibv_odp_caps& odp_caps();
bool pages_for(const Work& work);
uint32_t odp_operation(uint32_t opcode); // of a work request

// faults.cpp
struct Fault {
  uint64_t delay = 0; // ns before it is carried out
  ibv_wc_status status = IBV_WC_SUCCESS;
};
Fault draw_fault(uint64_t retransmit_ns);
bool draw_reorder();
void charge_translation(uint32_t process, uint64_t address, uint64_t length);

} // namespace adverb::loopback
