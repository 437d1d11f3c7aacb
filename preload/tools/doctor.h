// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What `adverb doctor` looks at, and how a finding is said. Each check_*() adds its lines to the
// report and changes nothing on the host beyond opening devices and connections for a moment.
#pragma once

#include "module/client.h"
#include "policy/settings.h"
#include "tools/host_files.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb::tools {

struct Check {
  enum class Level : unsigned char { ok, warn, fail, not_reached };
  Level level;
  std::string what;
  std::string finding;
  std::string remedy; // empty where nothing needs doing
};

class Report {
public:
  void ok(std::string what, std::string finding) {
    add(Check::Level::ok, std::move(what), std::move(finding), {});
  }
  // Works, but less or slower than it could.
  void warn(std::string what, std::string finding, std::string remedy) {
    add(Check::Level::warn, std::move(what), std::move(finding), std::move(remedy));
  }
  // Programs will not run under adverb as asked.
  void fail(std::string what, std::string finding, std::string remedy) {
    add(Check::Level::fail, std::move(what), std::move(finding), std::move(remedy));
  }
  void add(Check::Level level, std::string what, std::string finding, std::string remedy) {
    checks_.push_back({level, std::move(what), std::move(finding), std::move(remedy)});
  }
  const std::vector<Check>& checks() const { return checks_; }

private:
  std::vector<Check> checks_;
};

// What backend "odp" does on such a device.
std::string on_demand_by(const ibv_device_attr_ex& device);

// Where a peer's broker is asked for: "IP", "IP:PORT", "[IPv6]:PORT"; `port` keeps its value if
// the text names none. False if the text is none of these.
struct PeerAddress {
  in6_addr address{}; // IPv4 is v4-mapped
  unsigned scope = 0;
  uint16_t port = 0;
  std::string text; // without the port
};
bool parse_peer(const std::string& text, PeerAddress& out);

// What a walk to a peer needs of this host.
struct ThisHost {
  const HostFiles& files;
  // Whether that RDMA device registers memory as queue pairs are proven by. errno value.
  std::function<int(const std::string& device)> register_slots;
};

void check_libraries(Report& report);                                // doctor_library.cpp
void check_devices(Report& report, const HostFiles& host);           // doctor_device.cpp
int register_slots(const std::string& device);                       // the same
void check_host(Report& report, uint64_t staging);                   // doctor_host.cpp
void check_iommu(Report& report, const HostFiles& host);             // doctor_iommu.cpp
void check_broker(Report& report, const policy::LinkSettings& link); // doctor_peer.cpp
void check_peer(Report& report, const policy::LinkSettings& link, const PeerAddress& peer,
                const ThisHost& here);

// What can be seen of /dev/adverb.
struct DeviceNode {
  int missing = 0; // errno of looking at it
  std::string group;
  unsigned mode = 0;                     // permission bits
  int unopened = 0;                      // errno of opening it
  std::optional<adverb_version> version; // nothing if it gave none
};

void check_module(Report& report, const HostFiles& host); // doctor_module.cpp
// Its parts.
bool module_loaded(const HostFiles& host);
void check_loaded(Report& report, const HostFiles& host);
void check_signing(Report& report, const HostFiles& host);
void check_node(Report& report, const DeviceNode& node);
void check_limits(Report& report, const module::Result<module::Limits>& limits);

} // namespace adverb::tools
