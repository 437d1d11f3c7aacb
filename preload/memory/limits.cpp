// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/limits.h"
#include "world/no_cancel.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <optional>
#include <string_view>
#include <sys/resource.h>
#include <unistd.h>

namespace adverb::memory {
namespace {

constexpr uint64_t cap_ipc_lock = 14; // linux/capability.h

// The whole of a file; "" if there is none. Threads of adverb's own ask, so nothing here uses the
// program's allocator, as getline() and fopen() do: a thread that holds its lock may wait for one.
std::string text_of(const std::string& path) {
  const NoCancel whole;
  std::string text;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return text;
  std::array<char, 2048> part;
  for (ssize_t n = 0; (n = read(fd, part.data(), part.size())) > 0;)
    text.append(part.data(), static_cast<size_t>(n));
  close(fd);
  return text;
}

// What follows `name` in the line that begins with it; nothing: there is no such file or line.
std::optional<std::string> line_of(const std::string& path, std::string_view name) {
  const std::string text = text_of(path);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const auto line = std::string_view(text).substr(at, end - at);
    if (line.starts_with(name))
      return std::string(line.substr(name.size()));
    at = end + 1;
  }
  return std::nullopt;
}

} // namespace

uint64_t memlock_left() {
  uint64_t held = 0; // bytes: the kernel counts both against the limit
  for (const char* const name : {"VmPin:", "VmLck:"})
    if (const auto kib = line_of("/proc/self/status", name))
      held += strtoull(kib->c_str(), nullptr, 10) * 1024;
  const auto effective = line_of("/proc/self/status", "CapEff:");
  const bool privileged =
      effective && (strtoull(effective->c_str(), nullptr, 16) >> cap_ipc_lock & 1) != 0;
  rlimit limit{};
  if (privileged || getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return UINT64_MAX;
  return limit.rlim_cur > held ? limit.rlim_cur - held : 0;
}

namespace {

std::optional<std::string> group_of(const std::string& root, const std::string& process) {
  return line_of(root + "/proc/" + process + "/cgroup", "0::");
}

std::string files_of(const std::string& root, const std::string& group) {
  return root + "/sys/fs/cgroup" + (group == "/" ? "" : group);
}

uint64_t kilobytes(const std::string& root, const char* name) {
  const auto value = line_of(root + "/proc/meminfo", name);
  return value ? strtoull(value->c_str(), nullptr, 10) * 1024 : 0;
}

// Of ten seconds, in percent.
std::optional<double> waited(const std::string& path) {
  const auto some = line_of(path, "some avg10=");
  return some ? std::optional(strtod(some->c_str(), nullptr)) : std::nullopt;
}

} // namespace

MemoryLimit memory_limit(const std::string& root) {
  MemoryLimit least{kilobytes(root, "MemTotal:"), {}};
  auto group = group_of(root, "self");
  while (group) {
    // The topmost has no such file.
    const auto most = line_of(files_of(root, *group) + "/memory.max", "");
    if (most && *most != "max")
      if (const uint64_t bytes = strtoull(most->c_str(), nullptr, 10);
          least.bytes == 0 || bytes <= least.bytes) // the same: more processes share it
        least = {bytes, *group};
    if (group->size() <= 1)
      break;
    group->resize(std::max<size_t>(1, group->rfind('/')));
  }
  return least;
}

bool is_memory_short(const std::string& root) {
  constexpr double tenth = 10.0;
  std::optional<double> percent;
  if (const auto group = group_of(root, "self"))
    percent = waited(files_of(root, *group) + "/memory.pressure");
  if (!percent)
    percent = waited(root + "/proc/pressure/memory");
  if (percent)
    return *percent >= tenth;
  return kilobytes(root, "MemAvailable:") < kilobytes(root, "MemTotal:") / 20;
}

unsigned processes_in(const std::string& group, std::span<const pid_t> processes,
                      const std::string& root) {
  const std::string below = group == "/" ? group : group + "/";
  unsigned found = 1;
  for (const pid_t process : processes) {
    const std::string text = std::to_string(process);
    if (process == getpid() || access((root + "/proc/" + text).c_str(), F_OK) != 0)
      continue;
    const auto its = group.empty() ? std::nullopt : group_of(root, text);
    // "/..": outside of this process's namespace of groups.
    const bool is_in =
        its && !its->starts_with("/..") && (*its == group || its->starts_with(below));
    found += group.empty() || is_in ? 1 : 0;
  }
  return found;
}

} // namespace adverb::memory
