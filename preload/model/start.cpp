// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "model/start.h"
#include "memory/copy.h"

#include <cstdlib>
#include <dlfcn.h>
#include <string>
#include <sys/auxv.h>

namespace adverb::model {

namespace {

observe::LogLevel level_of(policy::LogLevel level) {
  switch (level) {
  case policy::LogLevel::debug:
    return observe::LogLevel::debug;
  case policy::LogLevel::info:
    return observe::LogLevel::info;
  case policy::LogLevel::warn:
    return observe::LogLevel::warn;
  case policy::LogLevel::error:
    return observe::LogLevel::error;
  default:
    return observe::LogLevel::off;
  }
}

const char* library_path() {
  Dl_info info{};
  return dladdr(reinterpret_cast<const void*>(&library_path), &info) != 0 ? info.dli_fname
                                                                          : "libadverb.so";
}

// Takes adverb out of LD_PRELOAD for programs this one starts (`adverb run --no-children`).
void leave_children_alone() {
  if (getauxval(AT_SECURE) != 0 || getenv("ADVERB_NO_CHILDREN") == nullptr)
    return;
  const char* preload = getenv("LD_PRELOAD");
  if (preload == nullptr)
    return;
  std::string kept;
  const std::string all(preload);
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find_first_of(": ", at), all.size());
    const std::string one = all.substr(at, end - at);
    if (!one.empty() && one.find("libadverb") == std::string::npos)
      kept += (kept.empty() ? "" : ":") + one;
    at = end + 1;
  }
  if (kept.empty())
    unsetenv("LD_PRELOAD");
  else
    setenv("LD_PRELOAD", kept.c_str(), 1);
}

} // namespace

bool start(World& world) {
  leave_children_alone();
  const auto& policy = world.policy();
  world.log.open(level_of(policy.log().level), policy.log().file);
  return !policy.idle();
}

void started_on(World& world, const char* device) {
  const auto& policy = world.policy();
  world.log.info("copies to and from unpinned memory: {}", memory::method());
  world.page.start({library_path(), policy.source(), "libibverbs", device});
  world.page.add_device(device);
  for (const auto& rule : policy.hits())
    world.page.label_rule(rule.slot, rule.name);
}

} // namespace adverb::model
