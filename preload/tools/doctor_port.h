// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A connection to who serves a link port, as far as it can be had by who has no queue pair there.
#pragma once

#include "link/wire.h"
#include "tools/doctor.h"

#include <chrono>
#include <optional>
#include <sys/socket.h>
#include <vector>

namespace adverb::tools {

class LinkPort {
public:
  using milliseconds = std::chrono::milliseconds;

  // How long the banner and the answer are waited for: as a program does (link/seeker_host.cpp).
  static constexpr milliseconds answer_due{3000};

  LinkPort() = default;
  ~LinkPort();
  LinkPort(const LinkPort&) = delete;
  LinkPort& operator=(const LinkPort&) = delete;

  int connect(const PeerAddress& peer, uint16_t port, milliseconds patience); // errno value
  milliseconds took() const { return took_; } // the last of these calls

  enum class Said : uint8_t { nothing, closed, good, other_version, nonsense };
  // A broker speaks first.
  Said hear_banner();
  // Asks for a queue pair of that number and the GID.
  Said say_hello(const link::wire::Id& dgid, uint32_t qpn, link::wire::HelloAck& ack);
  const link::wire::Versions& speaks() const { return speaks_; } // good, other_version: what
  const link::wire::Id& nonce() const { return nonce_; }         // of the hello

private:
  Said hear(link::wire::Type type, std::vector<std::byte>& payload);

  int fd_ = -1;
  milliseconds took_{};
  std::vector<std::byte> heard_;
  link::wire::Versions speaks_;
  link::wire::Id nonce_{};
};

} // namespace adverb::tools
