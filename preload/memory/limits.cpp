// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/limits.h"

#include <cstdio>
#include <memory>
#include <sys/resource.h>

namespace adverb::memory {
namespace {

constexpr uint64_t cap_ipc_lock = 14; // linux/capability.h

struct Close {
  void operator()(FILE* f) const { fclose(f); }
};

} // namespace

uint64_t memlock_left() {
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

} // namespace adverb::memory
