// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Is there an IOMMU, and could adverb.ko change its entries in place for the RDMA devices behind
// it? The module itself proves it when a device attaches; what is said here spares the try.
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "tools/doctor.h"

#include <sstream>

#include <fmt/format.h>

namespace adverb::tools {
namespace {

struct Verdict {
  std::string finding;
  std::string remedy; // empty: it could
};

Verdict judge(const std::string& unit, const std::string& group, const std::string& type) {
  constexpr const char* translate = "for backend np boot with iommu.passthrough=0, on Intel also "
                                    "with intel_iommu=on";
  constexpr const char* other = "leave backend np off for this device";
  if (group.empty())
    return {"behind no IOMMU, its addresses are not translated", translate};
  const std::string where = fmt::format("{}, group {}, {}", unit.empty() ? "unknown unit" : unit,
                                        group, type.empty() ? "unknown type" : type);
  if (type == "identity")
    return {where + ": its addresses are not translated", translate};
  // The kernel's names for domains of the DMA API, flushed at once or lazily.
  if (type != "DMA" && type != "DMA-FQ")
    return {where + ": managed by another driver (VFIO?)", other};
  // Intel's and AMD's units are called so in the kernel.
  if (!unit.starts_with("dmar") && !unit.starts_with("ivhd"))
    return {where + ": adverb.ko does not know the tables of such an IOMMU", other};
  return {where + ": fit for backend np, if the proof at attach succeeds", ""};
}

} // namespace

void check_iommu(Report& report, const HostFiles& host) {
  std::string units, arguments;
  for (const std::string& unit : host.names("/sys/class/iommu"))
    units += (units.empty() ? "" : " ") + unit;
  std::istringstream words(host.first_line("/proc/cmdline"));
  for (std::string word; words >> word;)
    if (word.find("iommu") != word.npos)
      arguments += " " + word;
  if (units.empty())
    report.ok("IOMMU", "none active; only backend np would need one");
  else
    report.ok("IOMMU", fmt::format("{}{}{}; only backend np depends on it", units,
                                   arguments.empty() ? "" : ", booted with", arguments));

  for (const std::string& name : host.names("/sys/class/infiniband")) {
    const std::string device = "/sys/class/infiniband/" + name + "/device";
    if (!host.exists(device))
      continue; // in software: no IOMMU is asked
    const std::string group = host.link_name(device + "/iommu_group");
    const Verdict verdict = judge(host.link_name(device + "/iommu"), group,
                                  host.first_line("/sys/kernel/iommu_groups/" + group + "/type"));
    const std::string what = "IOMMU of " + name;
    // Without the module nobody has asked for what the IOMMU is needed for.
    if (verdict.remedy.empty() || !module_loaded(host))
      report.ok(what, verdict.finding);
    else
      report.warn(what, verdict.finding, verdict.remedy);
  }
}

} // namespace adverb::tools
