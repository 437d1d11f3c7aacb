// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// An address as a socket of its family is given it to connect to.
#pragma once

#include <cstdint>
#include <cstring>
#include <netinet/in.h>
#include <sys/socket.h>

namespace adverb::link {

// Fills `out` and says how many bytes of it. A v4-mapped address becomes one of IPv4, as a kernel
// without IPv6 has no socket for the other.
inline socklen_t socket_address(const in6_addr& address, unsigned scope, uint16_t port,
                                sockaddr_storage& out) {
  out = {};
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    memcpy(&to.sin_addr, address.s6_addr + 12, sizeof to.sin_addr);
    memcpy(&out, &to, sizeof to);
    return sizeof to;
  }
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  to.sin6_port = htons(port);
  to.sin6_addr = address;
  to.sin6_scope_id = scope;
  memcpy(&out, &to, sizeof to);
  return sizeof to;
}

} // namespace adverb::link
