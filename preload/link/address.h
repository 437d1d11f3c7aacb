// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Where the peer of a queue pair answers, and who is at the other end of a connection.
#pragma once

#include "link/local_qp.h"
#include "policy/settings.h"

#include <cstdint>
#include <netinet/in.h>
#include <optional>
#include <string>
#include <sys/types.h>

namespace adverb::link {

// The IP address of the host that a queue pair's address vector names: what `settings` map it to
// first, then the RoCE GID itself (v4-mapped, link-local with the scope of the GID's network
// device, or global). The port is left 0. nullopt: cannot be known (InfiniBand LIDs without a
// mapping).
std::optional<sockaddr_in6> peer_address(const policy::LinkSettings& settings, const LocalQp& qp);

std::string to_text(const sockaddr_in6& address);

// The user whose socket the other end of this TCP connection is, where that is one of this network
// namespace; nullopt: it is somewhere else, or is not connected any more. `unknown_user`, which is
// nobody's number: the kernel has no name for them here.
inline constexpr uid_t unknown_user = UINT32_MAX;
std::optional<uid_t> user_here(int fd);

// Whether the kernel's word would do under `settings`, which demand neither a key nor that all be
// proven; and whether it is had: that the other end is a process of this user's or of root's on
// this host, which could do as it likes with this one anyway. Who has closed the connection
// meanwhile, so that nobody knows whose it was, is nobody.
bool may_vouch(const policy::LinkSettings& settings);
bool is_vouched_for(const policy::LinkSettings& settings, int fd);

// Whether an address (v4-mapped for IPv4) is one of this network namespace's own.
bool is_own(const in6_addr& address);

// The address at the other end; v4-mapped for IPv4. errno value, ENOTCONN while it is not
// connected.
int remote_address(int fd, in6_addr& address);

} // namespace adverb::link
