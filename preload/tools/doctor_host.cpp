// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Limits, kernel features and settings of the host and of this user on it.
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "tools/doctor.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include <fmt/format.h>

namespace adverb::tools {
namespace {

// The value of `key:` in /proc/self/status.
std::string own_status(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key + ":"))
      continue;
    const size_t at = line.find_first_not_of(" \t", key.size() + 1);
    return at == line.npos ? "" : line.substr(at);
  }
  return {};
}

std::string size_text(uint64_t bytes) {
  if (bytes >= uint64_t{1} << 30)
    return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
  return bytes >= 1 << 20 ? fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20))
                          : fmt::format("{} KiB", bytes >> 10);
}

bool may_lock_anything() {
  constexpr unsigned ipc_lock = 14; // CAP_IPC_LOCK of capabilities(7)
  const std::string effective = own_status("CapEff");
  return !effective.empty() && (std::stoull(effective, nullptr, 16) >> ipc_lock & 1) != 0;
}

// Design §3: staging is the smaller of what the policy says and a quarter of what may be locked.
void check_memlock(Report& report, uint64_t staging) {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY || may_lock_anything()) {
    report.ok("locked memory", fmt::format("not limited; staging is {}", size_text(staging)));
    return;
  }
  const uint64_t share = limit.rlim_cur / 4;
  const std::string finding = fmt::format(
      "RLIMIT_MEMLOCK is {}; staging is {} of the {} the policy allows", size_text(limit.rlim_cur),
      size_text(std::min(staging, share)), size_text(staging));
  const std::string remedy = fmt::format(
      "raise it to {} with `ulimit -l` or in /etc/security/limits.conf", size_text(4 * staging));
  if (share < 64 << 10)
    report.fail("locked memory", finding + ", too little to work with", remedy);
  else if (share < staging)
    report.warn("locked memory", finding, remedy);
  else
    report.ok("locked memory", finding);
}

// The responder copies with process_vm_writev() on its own process; container profiles forbid it.
void check_copies(Report& report) {
  uint64_t from = 0x5eed, to = 0;
  const iovec source{&from, sizeof from}, target{&to, sizeof to};
  if (process_vm_writev(getpid(), &source, 1, &target, 1, 0) == sizeof to && to == from) {
    report.ok("safe copies", "process_vm_writev works");
    return;
  }
  const std::string why =
      fmt::format("process_vm_writev: {}{}", std::strerror(errno),
                  own_status("Seccomp") == "2" ? " (a seccomp filter is on)" : "");
  if (access("/proc/self/mem", W_OK) == 0)
    report.warn("safe copies", why + "; /proc/self/mem is used, which is slower",
                "allow process_vm_readv and process_vm_writev in the container's profile");
  else
    report.fail("safe copies", why + " and /proc/self/mem cannot be written",
                "allow process_vm_readv and process_vm_writev in the container's profile");
}

void check_environment(Report& report) {
  const char* preload = getenv("LD_PRELOAD");
  if (preload == nullptr || *preload == '\0')
    report.ok("LD_PRELOAD", "not set; `adverb run` sets it for the program");
  else if (std::string_view(preload).find("libadverb") != std::string_view::npos)
    report.warn(
        "LD_PRELOAD", fmt::format("already has libadverb.so: {}", preload),
        "unset it and use `adverb run`; otherwise every program of this shell is preloaded");
  else
    report.ok("LD_PRELOAD",
              fmt::format("has {}; `adverb run` adds libadverb.so behind it", preload));
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (text.starts_with("ADVERB_"))
      report.ok("environment", std::string(text));
  }
}

void check_speed(Report& report) {
  const std::string governor =
      HostFiles().first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (governor == "powersave" || governor == "conservative")
    report.warn("CPU frequency", fmt::format("governor {} makes latencies vary", governor),
                "for measurements use `cpupower frequency-set -g performance`");
  const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  if (cpus < 2)
    report.warn("CPUs", "only one: a program that polls without pause delays the service thread",
                "give it a second one");
}

} // namespace

void check_host(Report& report, uint64_t staging) {
  check_memlock(report, staging);
  check_copies(report);
  check_environment(report);
  check_speed(report);
}

} // namespace adverb::tools
