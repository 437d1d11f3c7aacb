// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// adverb.ko: is it loaded, would the kernel take it, who may use it, and how much.
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "tools/doctor.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <grp.h>
#include <sstream>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace adverb::tools {
namespace {

constexpr const char* node_path = "/dev/adverb";

// The file modprobe would load, absolute on that host; empty if none is installed for its kernel.
std::string installed_module(const HostFiles& host) {
  const std::string folder = "/lib/modules/" + host.first_line("/proc/sys/kernel/osrelease");
  std::istringstream lines(host.content(folder + "/modules.dep"));
  for (std::string line; std::getline(lines, line);) {
    const std::string path = line.substr(0, line.find(':'));
    const std::string name = path.substr(path.rfind('/') + 1);
    if (name == "adverb.ko" || name.starts_with("adverb.ko."))
      return path.starts_with('/') ? path : folder + "/" + path;
  }
  return {};
}

// What decides whether a module must be signed with a key the kernel knows.
struct Signing {
  std::string secure_boot; // "on", "off"; empty: no UEFI
  std::string lockdown;    // "none", "integrity", "confidentiality"; empty: not told
  bool enforced = false;   // module.sig_enforce

  bool demanded() const {
    if (lockdown.empty())
      return enforced || secure_boot == "on"; // which then locks distributions' kernels down
    return enforced || lockdown != "none";
  }
};

Signing signing_of(const HostFiles& host) {
  Signing out;
  // Four bytes of attributes, then the value (UEFI, "Globally Defined Variables").
  const std::string variable =
      host.content("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c");
  if (host.exists("/sys/firmware/efi"))
    out.secure_boot = variable.size() == 5 && variable[4] == 1 ? "on" : "off";
  // The mode in force stands in brackets: "none [integrity] confidentiality".
  const std::string modes = host.first_line("/sys/kernel/security/lockdown");
  const size_t open = modes.find('['), close = modes.find(']');
  if (open != modes.npos && close != modes.npos && open < close)
    out.lockdown = modes.substr(open + 1, close - open - 1);
  out.enforced = host.first_line("/sys/module/module/parameters/sig_enforce") == "Y";
  return out;
}

std::string describe(const Signing& signing) {
  return fmt::format("{}, lockdown {}, module.sig_enforce {}",
                     signing.secure_boot.empty() ? "no UEFI" : "Secure Boot " + signing.secure_boot,
                     signing.lockdown.empty() ? "not told" : signing.lockdown,
                     signing.enforced ? "on" : "off");
}

std::string signing_remedy(const HostFiles& host, const Signing& signing) {
  if (signing.secure_boot.empty())
    return "boot without lockdown= and module.sig_enforce=; without UEFI no key can be enrolled";
  constexpr const char* ubuntu = "/var/lib/shim-signed/mok/MOK.der";
  return fmt::format("enrol the key dkms signs with: `mokutil --import {}`, reboot, \"Enroll MOK\" "
                     "(kernel/README.md, \"Secure Boot\")",
                     host.exists(ubuntu) ? ubuntu : "/var/lib/dkms/mok.pub");
}

bool has_signature(const HostFiles& host, const std::string& module) {
  return host.content(module).ends_with("~Module signature appended~\n");
}

std::string group_name(gid_t id) {
  const group* entry = getgrgid(id);
  return entry != nullptr ? entry->gr_name : std::to_string(id);
}

DeviceNode look_at_node(const HostFiles& host) {
  DeviceNode out;
  struct stat seen{};
  if (stat(host.at(node_path).c_str(), &seen) != 0) {
    out.missing = errno;
    return out;
  }
  out.group = group_name(seen.st_gid);
  out.mode = seen.st_mode & 07777;
  const int fd = open(host.at(node_path).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    out.unopened = errno;
    return out;
  }
  adverb_version version{};
  if (ioctl(fd, ADVERB_IOC_VERSION, &version) == 0)
    out.version = version;
  close(fd);
  return out;
}

module::Result<module::Limits> ask_limits() {
  auto opened = module::Client::open();
  if (auto* failed = std::get_if<module::Failure>(&opened))
    return *failed;
  return std::get<module::Client>(opened).limits();
}

} // namespace

bool module_loaded(const HostFiles& host) {
  return host.exists("/sys/module/adverb");
}

void check_loaded(Report& report, const HostFiles& host) {
  if (module_loaded(host)) {
    report.ok("kernel module",
              fmt::format("adverb.ko {} is loaded", host.first_line("/sys/module/adverb/version")));
    return;
  }
  const std::string module = installed_module(host);
  if (module.empty())
    report.ok("kernel module",
              fmt::format("not loaded, and not installed for kernel {}; only backend np needs it",
                          host.first_line("/proc/sys/kernel/osrelease")));
  else
    report.ok(
        "kernel module",
        fmt::format("not loaded; `modprobe adverb` loads {}; only backend np needs it", module));
}

void check_signing(Report& report, const HostFiles& host) {
  const Signing signing = signing_of(host);
  const std::string facts = describe(signing);
  const std::string module = installed_module(host);
  if (!signing.demanded())
    report.ok("module signing", facts + "; the kernel takes unsigned modules");
  else if (module_loaded(host))
    report.ok("module signing", facts + "; adverb.ko is loaded already");
  else if (has_signature(host, module))
    report.ok("module signing",
              facts + "; the kernel takes signed modules only, and adverb.ko is signed; its key "
                      "must be enrolled (`mokutil --test-key`)");
  else
    report.warn("module signing", facts + "; the kernel takes signed modules only",
                signing_remedy(host, signing));
}

void check_node(Report& report, const DeviceNode& node) {
  constexpr const char* rule = "install kernel/install/60-adverb.rules in /lib/udev/rules.d, then "
                               "`udevadm trigger /dev/adverb`";
  if (node.missing != 0) {
    report.warn(node_path, std::strerror(node.missing),
                "mount devtmpfs on /dev, or hand the device to the container (--device)");
    return;
  }
  const std::string finding = fmt::format("group {}, mode {:04o}", node.group, node.mode);
  if (node.group != "rdma")
    report.warn(node_path, finding + "; only root may use it", rule);
  else if ((node.mode & 0777) != 0660)
    report.warn(node_path, finding + " instead of 0660", rule);
  else if (node.unopened == EACCES || node.unopened == EPERM)
    report.warn(node_path, finding + "; not for this user",
                "join it (`usermod -aG rdma USER`) and log in again");
  else if (node.unopened != 0)
    report.warn(node_path, fmt::format("{}; {}", finding, std::strerror(node.unopened)),
                "look at the kernel log");
  else if (!node.version)
    report.fail(node_path, finding + "; it does not answer as adverb.ko does",
                "remove what is there and reload the module");
  else if (const auto wrong = module::misfit(*node.version))
    report.fail(node_path, wrong->text, wrong->remedy);
  else
    report.ok(node_path, finding + "; this user can open it");
}

void check_limits(Report& report, const module::Result<module::Limits>& answer) {
  constexpr const char* what = "module limits";
  if (const auto* limits = std::get_if<module::Limits>(&answer)) {
    report.ok(what, fmt::format("a user has at most {} regions and {} MiB of tables",
                                limits->regions, limits->pages >> 8));
    return;
  }
  using Why = module::Failure::Why;
  const auto& failed = std::get<module::Failure>(answer);
  if (failed.why == Why::absent)
    report.warn(what, "the module is loaded, but its netlink family is not visible here",
                "ask in the host's network namespace, not in a container's own");
  else if (failed.why == Why::version || failed.why == Why::malformed)
    report.fail(what, failed.text, failed.remedy);
  else
    report.warn(what, failed.text, failed.remedy);
}

void check_module(Report& report, const HostFiles& host) {
  check_loaded(report, host);
  check_signing(report, host);
  if (!module_loaded(host))
    return;
  check_node(report, look_at_node(host));
  check_limits(report, ask_limits());
}

} // namespace adverb::tools
