// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What backend "odp" can do with a device, by what that says of itself.
#include "registration/odp_caps.h"
#include "tools/doctor.h"

namespace adverb::tools {

std::string on_demand_by(const ibv_device_attr_ex& device) {
  constexpr unsigned local = IBV_ACCESS_LOCAL_WRITE;
  constexpr struct {
    unsigned access;
    std::string_view name;
  } rights[] = {{0, "no right at all"},
                {local, "LOCAL_WRITE"},
                {IBV_ACCESS_REMOTE_READ, "REMOTE_READ"},
                {local | IBV_ACCESS_REMOTE_WRITE, "REMOTE_WRITE"},
                {local | IBV_ACCESS_REMOTE_ATOMIC, "REMOTE_ATOMIC"}};
  // What regions without a right need all others need, too, and so on.
  if (const std::string_view why = registration::odp_lacks(device, 0); !why.empty())
    return "backend odp would pin all regions: " + std::string(why);
  std::string pinned;
  std::string_view said;
  for (const auto& right : rights)
    if (const std::string_view why = registration::odp_lacks(device, right.access);
        !why.empty() && why != said) {
      pinned += (pinned.empty() ? "" : "; ") + ("with " + std::string(right.name)) + ", as " +
                std::string(why);
      said = why;
    }
  std::string types;
  for (const auto& [type, name] : {std::pair{IBV_QPT_UC, "UC"}, std::pair{IBV_QPT_UD, "UD"}})
    if (!registration::odp_serves(device.odp_caps, type))
      types += (types.empty() ? "" : " or ") + std::string(name);
  std::string words = "backend odp registers regions on demand";
  if (!pinned.empty())
    words += ", but not those " + pinned;
  if (!types.empty())
    words += "; none once the program has a " + types + " queue pair";
  return words;
}

} // namespace adverb::tools
