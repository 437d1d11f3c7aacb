// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Where the peer of a queue pair answers, and who is at the other end of a connection.
#pragma once

#include "link/local_qp.h"
#include "policy/settings.h"

#include <netinet/in.h>
#include <optional>
#include <string>

namespace adverb::link {

// The IP address of the host that a queue pair's address vector names: what `settings` map it to
// first, then the RoCE GID itself (v4-mapped, link-local with the scope of the GID's network
// device, or global). The port is left 0. nullopt: cannot be known (InfiniBand LIDs without a
// mapping).
std::optional<sockaddr_in6> peer_address(const policy::LinkSettings& settings, const LocalQp& qp);

std::string to_text(const sockaddr_in6& address);

// True when the process at the other end of this TCP connection is on this host and of our uid.
bool same_host_and_uid(int fd);

// The address at the other end; v4-mapped for IPv4. errno value, ENOTCONN while it is not
// connected.
int remote_address(int fd, in6_addr& address);

} // namespace adverb::link
