// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/address.h"

#include <arpa/inet.h>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <net/if.h>
#include <unistd.h>

namespace adverb::link {
namespace {

unsigned scope_of(const LocalQp& qp) {
  std::ifstream file(std::string("/sys/class/infiniband/") + qp.device->name + "/ports/" +
                     std::to_string(qp.ah.port_num) + "/gid_attrs/ndevs/" +
                     std::to_string(qp.ah.grh.sgid_index));
  std::string name;
  return file >> name ? if_nametoindex(name.c_str()) : 0;
}

sockaddr_in6 with(const in6_addr& address) {
  sockaddr_in6 out{};
  out.sin6_family = AF_INET6;
  out.sin6_addr = address;
  return out;
}

// A sockaddr of either family as IPv6.
bool widen(const sockaddr_storage& in, in6_addr& address, uint16_t& port) {
  if (in.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(in);
    address = v6.sin6_addr;
    port = ntohs(v6.sin6_port);
    return true;
  }
  if (in.ss_family != AF_INET)
    return false;
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(in);
  address = {};
  address.s6_addr[10] = address.s6_addr[11] = 0xFF;
  memcpy(&address.s6_addr[12], &v4.sin_addr, 4);
  port = ntohs(v4.sin_port);
  return true;
}

struct End {
  in6_addr address{};
  unsigned port = 0;
  bool operator==(const End& other) const {
    return port == other.port && memcmp(&address, &other.address, sizeof address) == 0;
  }
};

// An address of /proc/net/tcp or tcp6: 32-bit words in host order.
bool parse_address(const char* hex, bool v6, in6_addr& address) {
  address = {};
  for (int i = 0; i < (v6 ? 4 : 1); ++i) {
    uint32_t word = 0;
    if (sscanf(hex + 8 * i, "%8" SCNx32, &word) != 1)
      return false;
    memcpy(&address.s6_addr[v6 ? 4 * i : 12], &word, sizeof word);
  }
  if (!v6)
    address.s6_addr[10] = address.s6_addr[11] = 0xFF;
  return true;
}

bool parse_socket(const char* line, bool v6, End& local, End& remote, unsigned& uid) {
  char from[33] = {};
  char to[33] = {};
  return sscanf(line, " %*u: %32[0-9A-F]:%x %32[0-9A-F]:%x %*x %*x:%*x %*x:%*x %*x %u", from,
                &local.port, to, &remote.port, &uid) == 5 &&
         parse_address(from, v6, local.address) && parse_address(to, v6, remote.address);
}

} // namespace

std::optional<sockaddr_in6> peer_address(const policy::LinkSettings& settings, const LocalQp& qp) {
  if (qp.ah.is_global == 0) {
    if (const auto mapped = settings.mapped_lid(qp.ah.dlid))
      return with(*mapped);
    return std::nullopt;
  }
  std::array<uint8_t, 16> gid;
  memcpy(gid.data(), qp.ah.grh.dgid.raw, gid.size());
  if (const auto mapped = settings.mapped_peer(gid))
    return with(*mapped);
  in6_addr address;
  memcpy(&address, gid.data(), sizeof address);
  auto out = with(address);
  if (IN6_IS_ADDR_LINKLOCAL(&address)) {
    out.sin6_scope_id = scope_of(qp);
    if (out.sin6_scope_id == 0)
      return std::nullopt;
  }
  return out;
}

std::string to_text(const sockaddr_in6& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (IN6_IS_ADDR_V4MAPPED(&address.sin6_addr))
    inet_ntop(AF_INET, &address.sin6_addr.s6_addr[12], text, sizeof text);
  else
    inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof text);
  return address.sin6_scope_id == 0 ? std::string(text)
                                    : text + ("%" + std::to_string(address.sin6_scope_id));
}

int remote_address(int fd, in6_addr& address) {
  sockaddr_storage peer{};
  socklen_t bytes = sizeof peer;
  uint16_t port = 0;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0)
    return errno;
  return widen(peer, address, port) ? 0 : EAFNOSUPPORT;
}

// The kernel lists this namespace's sockets with their owners; a remote peer's is not among them.
// Both ends must match: users may share a local port towards different destinations.
bool same_host_and_uid(int fd) {
  sockaddr_storage peer{};
  sockaddr_storage own{};
  socklen_t peer_bytes = sizeof peer;
  socklen_t own_bytes = sizeof own;
  uint16_t port = 0;
  End theirs;
  End ours;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) != 0 ||
      !widen(peer, theirs.address, port))
    return false;
  theirs.port = port;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_bytes) != 0 ||
      !widen(own, ours.address, port))
    return false;
  ours.port = port;
  for (const bool v6 : {true, false}) {
    struct Close {
      void operator()(FILE* f) const { fclose(f); }
    };
    const std::unique_ptr<FILE, Close> file(fopen(v6 ? "/proc/net/tcp6" : "/proc/net/tcp", "re"));
    char line[512];
    while (file && fgets(line, sizeof line, file.get()) != nullptr) {
      End local;
      End remote;
      unsigned uid = 0;
      if (parse_socket(line, v6, local, remote, uid) && local == theirs && remote == ours)
        return uid == geteuid();
    }
  }
  return false;
}

} // namespace adverb::link
