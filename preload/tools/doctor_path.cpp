// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which RDMA device of this host the way to a peer takes, as sysfs says it.
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "tools/doctor_path.h"

#include "link/socket_address.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>

namespace adverb::tools {
namespace {

constexpr const char* devices = "/sys/class/infiniband";

bool has_net_device(const HostFiles& host, const std::string& name) {
  // What is mounted on /sys may be of another namespace.
  return host.is_this() ? if_nametoindex(name.c_str()) != 0 : host.exists("/sys/class/net/" + name);
}

bool is_gid(const std::string& text, const in6_addr& address) {
  in6_addr gid{};
  return inet_pton(AF_INET6, text.c_str(), &gid) == 1 && memcmp(&gid, &address, sizeof gid) == 0;
}

} // namespace

std::optional<in6_addr> source_towards(const in6_addr& peer, unsigned scope) {
  sockaddr_storage at{};
  socklen_t size = link::socket_address(peer, scope, 1, at); // nothing is sent
  const int fd = socket(at.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return std::nullopt;
  int error = connect(fd, reinterpret_cast<sockaddr*>(&at), size) == 0 ? 0 : errno;
  size = sizeof at;
  if (error == 0 && getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0)
    error = errno;
  close(fd);
  errno = error;
  if (error != 0)
    return std::nullopt;
  in6_addr from{};
  if (at.ss_family == AF_INET6) {
    memcpy(&from, &reinterpret_cast<const sockaddr_in6&>(at).sin6_addr, sizeof from);
    return from;
  }
  from.s6_addr[10] = from.s6_addr[11] = 0xff;
  memcpy(&from.s6_addr[12], &reinterpret_cast<const sockaddr_in&>(at).sin_addr, 4);
  return from;
}

std::optional<Path> find_path(const HostFiles& host, const in6_addr& source) {
  std::optional<Path> best;
  for (const std::string& device : host.names(devices)) {
    const std::string ports = fmt::format("{}/{}/ports", devices, device);
    for (const std::string& port : host.names(ports)) {
      const std::string folder = ports + "/" + port;
      for (const std::string& index : host.names(folder + "/gids")) {
        if (!is_gid(host.first_line(folder + "/gids/" + index), source))
          continue;
        Path path;
        path.device = device;
        path.port = port;
        path.gid_index = index;
        path.gid_type = host.first_line(folder + "/gid_attrs/types/" + index);
        path.net_device = host.first_line(folder + "/gid_attrs/ndevs/" + index);
        const std::string state = host.first_line(folder + "/state"); // "4: ACTIVE"
        path.state = state.substr(std::min(state.size(), state.find(' ') + 1));
        path.here = path.net_device.empty() || has_net_device(host, path.net_device);
        // Of two of one address, one for each version of RoCE, programs use the routable one.
        if (!best || (best->gid_type != "RoCE v2" && path.gid_type == "RoCE v2"))
          best = std::move(path);
      }
    }
  }
  return best;
}

std::vector<std::string> net_devices_elsewhere(const HostFiles& host, const std::string& device) {
  std::vector<std::string> out;
  const std::string ports = fmt::format("{}/{}/ports", devices, device);
  for (const std::string& port : host.names(ports)) {
    const std::string folder = ports + "/" + port + "/gid_attrs/ndevs";
    for (const std::string& index : host.names(folder)) {
      const std::string name = host.first_line(folder + "/" + index);
      if (!name.empty() && !has_net_device(host, name) && std::ranges::find(out, name) == out.end())
        out.push_back(name);
    }
  }
  return out;
}

std::vector<std::string> net_devices_elsewhere(const HostFiles& host) {
  std::vector<std::string> out;
  for (const std::string& device : host.names(devices))
    std::ranges::copy(net_devices_elsewhere(host, device), std::back_inserter(out));
  return out;
}

std::string elsewhere(const std::string& net_device) {
  return fmt::format(
      "its network device {} is not in this network namespace: links to hosts behind "
      "it cannot be made from here",
      net_device);
}

} // namespace adverb::tools
