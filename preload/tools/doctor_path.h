// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which RDMA device of this host the way to a peer takes.
#pragma once

#include "tools/host_files.h"

#include <netinet/in.h>
#include <optional>
#include <string>
#include <vector>

namespace adverb::tools {

struct Path {
  std::string device;
  std::string port;
  std::string gid_index;
  std::string gid_type;   // "RoCE v2"
  std::string net_device; // of the GID; empty: it has none
  std::string state;      // of the port
  bool here = true;       // that net device is in this network namespace
};

// The address that this host has towards that one, v4-mapped for IPv4; nullopt: there is no route.
std::optional<in6_addr> source_towards(const in6_addr& peer, unsigned scope);
// The device of which `source` is a GID; nullopt: it is none's.
std::optional<Path> find_path(const HostFiles& host, const in6_addr& source);

// Network devices of an RDMA device's GIDs that are in another network namespace.
std::vector<std::string> net_devices_elsewhere(const HostFiles& host, const std::string& device);
std::vector<std::string> net_devices_elsewhere(const HostFiles& host); // of all of these
std::string elsewhere(const std::string& net_device);                  // said of one
inline constexpr const char* elsewhere_remedy =
    "run the program in the namespace of that network device, or move the device into this one: "
    "`ip link set DEVICE netns NAME`";

} // namespace adverb::tools
