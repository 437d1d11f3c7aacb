// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Jobs that wait, in the order they came. Nothing is allocated for one. Not thread-safe.
#pragma once

#include "service/service.h"

#include <utility>

namespace adverb::service {

class Jobs {
public:
  bool empty() const noexcept { return first_ == nullptr; }
  void push(Job& job) noexcept {
    job.next_ = nullptr;
    (first_ == nullptr ? first_ : last_->next_) = &job;
    last_ = &job;
  }
  Job& pop() noexcept {
    Job& job = *first_;
    first_ = job.next_;
    return job;
  }

private:
  Job* first_ = nullptr;
  Job* last_ = nullptr;
};

} // namespace adverb::service
