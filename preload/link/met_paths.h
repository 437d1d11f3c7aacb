// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The paths over which a channel has been open, as long as there are not too many.
#pragma once

#include "world/sync.h"

#include <cstddef>
#include <mutex>
#include <set>
#include <string>

namespace adverb::link {

// Any thread; its lock is a leaf.
class MetPaths {
public:
  static constexpr size_t paths_max = 65536;

  bool has(const std::string& path) const {
    const std::lock_guard hold(lock_);
    return paths_.contains(path);
  }
  // Of no effect when there are paths_max.
  void add(const std::string& path) {
    const std::lock_guard hold(lock_);
    if (paths_.size() < paths_max)
      paths_.insert(path);
  }

private:
  mutable Mutex lock_;
  std::set<std::string> paths_;
};

} // namespace adverb::link
