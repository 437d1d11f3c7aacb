// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What channels may be opened for in this process.
#pragma once

#include "link/channel.h"
#include "world/sync.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

namespace adverb::link {

class Protocols {
public:
  // The first of an id stays.
  void add(std::shared_ptr<Protocol> protocol) {
    const std::lock_guard hold(lock_);
    if (std::ranges::none_of(all_, [&](const auto& p) { return p->id() == protocol->id(); }))
      all_.push_back(std::move(protocol));
  }
  // nullptr: not served here.
  std::shared_ptr<Protocol> find(uint8_t id) const {
    const std::lock_guard hold(lock_);
    const auto at = std::ranges::find_if(all_, [id](const auto& p) { return p->id() == id; });
    return at == all_.end() ? nullptr : *at;
  }

private:
  mutable Mutex lock_;
  std::vector<std::shared_ptr<Protocol>> all_;
};

} // namespace adverb::link
