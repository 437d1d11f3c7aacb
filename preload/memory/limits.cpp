// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/limits.h"
#include "world/no_cancel.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <sys/resource.h>
#include <unistd.h>

namespace adverb::memory {
namespace {

constexpr uint64_t cap_ipc_lock = 14; // linux/capability.h

struct Close {
  void operator()(FILE* f) const { fclose(f); }
};

} // namespace

uint64_t memlock_left() {
  const NoCancel whole;
  uint64_t held = 0; // VmPin + VmLck, bytes: the kernel counts both against the limit
  bool privileged = false;
  const std::unique_ptr<FILE, Close> file(fopen("/proc/self/status", "re"));
  char line[256];
  while (file && fgets(line, sizeof line, file.get()) != nullptr) {
    unsigned long long value = 0;
    if (sscanf(line, "VmPin: %llu kB", &value) == 1 || sscanf(line, "VmLck: %llu kB", &value) == 1)
      held += value * 1024;
    else if (sscanf(line, "CapEff: %llx", &value) == 1)
      privileged = (value >> cap_ipc_lock & 1) != 0;
  }
  rlimit limit{};
  if (privileged || getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return UINT64_MAX;
  return limit.rlim_cur > held ? limit.rlim_cur - held : 0;
}

namespace {

using File = std::unique_ptr<FILE, Close>;

// What follows `name` in the line that begins with it; nothing: there is no such file or line.
std::optional<std::string> line_of(const std::string& path, const char* name) {
  const NoCancel whole;
  const File file(fopen(path.c_str(), "re"));
  char* line = nullptr;
  size_t room = 0;
  std::optional<std::string> found;
  while (file && !found && getline(&line, &room, file.get()) > 0)
    if (strncmp(line, name, strlen(name)) == 0) {
      line[strcspn(line, "\n")] = '\0';
      found = line + strlen(name);
    }
  free(line);
  return found;
}

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
