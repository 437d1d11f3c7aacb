// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A process's part in its host's broker: one port per host for many processes, behind which a
// broker hands each connection to the process that owns the queue pair it asks for, over a Unix
// socket (broker_server.h). Whoever finds none serves the others, or with `link.broker: "process"`
// starts a process that does, so that a program that is stopped stops nobody else's links. When a
// broker ends its members see it, and one of them is or starts the next.
//
// A process follows a broker of its own user or of root, and a broker of a user takes members of
// that user only.
#pragma once

#include "link/broker_server.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace adverb::link {

class Broker {
public:
  using Accept = BrokerServer::Accept;
  // Starts a process that serves the two listening sockets; errno value.
  using Start = std::function<int(int members, int peers)>;
  // `accept` gets, on the service thread, each connection that asks for a queue pair of this
  // process, with its hello. Without `start` this process serves where nobody does.
  Broker(World& world, uint16_t port, Accept accept, Start start = {});

  // Joins, starts or serves; errno value when nothing is possible now (another user's program holds
  // the name). The service thread tries again then, after pauses that grow. Waits for nobody.
  // Called by add(). Thread-safe.
  int join();

  // When add() returns, hellos for the queue pair find this process, unless there is no broker to
  // be joined or it takes no registrations: then they do when it does. Thread-safe.
  void add(const wire::Id& gid, uint32_t qpn);
  void remove(const wire::Id& gid, uint32_t qpn);

private:
  // Under lock_; errno values.
  int join_locked();
  int try_to_join();
  void join_later();
  int follow(const std::string& name, bool root);
  int start_or_serve();
  void tell_broker(const wire::Registration& registration, wire::Type type);
  bool send_now(const std::vector<std::byte>& frame);
  void send_later();

  World& world_;
  const uint16_t port_;
  const Accept accept_;
  const Start start_;
  RecursiveMutex lock_;
  std::vector<wire::Registration> mine_;
  std::shared_ptr<Connection> broker_;        // member: from the broker, the service thread's
  int broker_fd_ = -1;                        // member: the same socket, to write to under lock_
  std::chrono::nanoseconds joined_{};         // when
  uint64_t again_ = 0;                        // timer of the next try, while there is no broker
  unsigned failed_ = 0;                       // tries, one after the other
  std::deque<std::vector<std::byte>> unsent_; // while the broker does not read
  std::chrono::milliseconds send_pause_{};
  std::optional<std::chrono::nanoseconds> started_; // one, when
  BrokerServer server_;                             // serves where no process could be started
};

} // namespace adverb::link
