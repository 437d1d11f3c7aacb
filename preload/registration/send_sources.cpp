// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/send_sources.h"

#include <algorithm>
#include <new>

namespace adverb::registration {

void SendSources::learn(const ibv_sge& own, Window* window) noexcept {
  if (own.length == 0)
    return;
  if (window != nullptr)
    window_.learn(own, *window);
  else if (own.length <= most_)
    learn_copy(own);
}

void SendSources::learn_copy(const ibv_sge& own) noexcept {
  if (kept_ == nullptr) {
    std::unique_ptr<Kept> fresh(new (std::nothrow) Kept);
    if (fresh == nullptr || !(fresh->block = staging_.take_to_keep(slots * slot_bytes)))
      return;
    kept_ = std::move(fresh);
    ready_ = most_;
  }
  Readable& known = place_of(*kept_, own.lkey);
  if (known.key != own.lkey || known.as_of != regions_.changes())
    known = regions_.readable(pd_, own.lkey);
}

SendSources::~SendSources() {
  if (kept_ != nullptr)
    kept_->copying = {}; // nobody posts any more
  give_back();
}

void SendSources::give_back() noexcept {
  ready_ = 0;
  window_.give_back();
  ending_ = kept_ != nullptr && std::ranges::count(kept_->copying, true) != 0;
  if (ending_)
    return;
  if (kept_ != nullptr)
    staging_.give(kept_->block);
  kept_.reset();
}

} // namespace adverb::registration
