// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The critical size (Frey and Alonso, 2009): so many bytes take as long to copy as to register and
// deregister once. What a device takes for that differs by orders of magnitude, so it is measured,
// on each host once until it boots: a few milliseconds at the first region that is not pinned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb {
class Clock;
}

namespace adverb::registration {

struct CriticalSize {
  uint64_t resident = 0; // bytes, of memory that is there, as what a request names is by then
  uint64_t absent = 0;   // of memory that nobody has touched, for people: both ways have it brought
};

// Between these it is told apart: who copies more than the most has a window.
inline constexpr uint64_t critical_least = 4 << 10;
inline constexpr uint64_t critical_most = 4 << 20;

// The verbs of a device, by which it is measured. `reg` returns null and errno.
struct Registering {
  std::function<ibv_mr*(void* start, size_t bytes)> reg;
  std::function<void(ibv_mr* mr)> dereg;
};

// Copies and registers memory of its own. Nothing: the clock stands still, or memory cannot be had
// or registered. The shortest of some times counts, so that what else runs does not count by much.
std::optional<CriticalSize> measure_critical_size(Clock& clock, const Registering& device);

// What was measured of a device of that name since this host has booted, by a process of this user,
// and for those to come: a file in the first of `directories` (observe/directory.h) that takes it.
// Files of another user, or of another form, count for nothing.
std::optional<CriticalSize> kept_critical_size(const std::vector<std::string>& directories,
                                               std::string_view device);
void keep_critical_size(const std::vector<std::string>& directories, std::string_view device,
                        const CriticalSize& size);

} // namespace adverb::registration
