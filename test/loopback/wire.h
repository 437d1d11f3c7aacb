// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The packets of this process that are on a bad link and have not arrived. A packet owns a copy of
// its payload, and names its target by number and key only: the sender's objects may be gone when
// it arrives. The progress thread delivers the packets that are due, in order of their time.
#pragma once
#include "responder.h"

#include <map>
#include <optional>

namespace adverb::loopback {

struct Packet {
  Origin origin;
  SendWqe wqe;
  std::vector<char> payload;
};

class Wire {
public:
  explicit Wire(Process& process) : process_(process) {}

  // Puts a packet on the wire, due at a time in ns. Any thread.
  Ticket put(Packet&& packet, uint64_t due);
  // Takes a packet off the wire, unless it has arrived. Any thread.
  std::optional<Packet> take(Ticket ticket);
  // Delivers what is due. Returns the time of the next packet in ns, UINT64_MAX without one.
  // The progress thread only.
  uint64_t deliver_due();

private:
  Process& process_;
  std::atomic<uint64_t> earliest_{UINT64_MAX};
  std::mutex mutex_;
  std::map<Ticket, Packet> packets_; // guarded by mutex_
  uint64_t next_number_ = 0;         // guarded by mutex_
};

} // namespace adverb::loopback
