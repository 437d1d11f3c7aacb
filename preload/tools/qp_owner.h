// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which process made a queue pair, as the kernel keeps books of it (RDMA netlink, rdma(8)
// "resource").
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <sys/types.h>

struct nl_sock;

namespace adverb::tools {

// Not thread-safe.
class QpOwners {
public:
  QpOwners();
  ~QpOwners();
  QpOwners(const QpOwners&) = delete;
  QpOwners& operator=(const QpOwners&) = delete;

  // Whether a process may speak for a queue pair of that number. False only where the kernel knows
  // who made it, on each device that has one, and none of these is a thread of that process. What
  // it does not know (a device without a driver in the kernel, a thread that has ended, a process
  // of another PID namespace) speaks against nobody.
  bool may_own(pid_t process, uint32_t qpn);

private:
  struct Device {
    uint32_t index;
    uint32_t ports;
  };
  std::vector<Device> devices();
  enum class Made : uint8_t { here, elsewhere, unknown, nowhere };
  Made made(const Device& device, uint32_t qpn, pid_t process);
  static Made made_by(uint32_t maker, pid_t process);

  std::unique_ptr<nl_sock, void (*)(nl_sock*)> socket_;
};

} // namespace adverb::tools
