// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// First in, first out, in one piece of memory that is none until something is in it: most queue
// pairs never have any use for theirs.
#pragma once

#include <cstddef>
#include <vector>

namespace adverb::queue {

template <typename T> class Fifo {
public:
  bool empty() const noexcept { return first_ == all_.size(); }
  T& front() noexcept { return all_[first_]; }
  T& back() noexcept { return all_.back(); }
  // May throw bad_alloc, and then has done nothing.
  T& push() {
    if (all_.size() == all_.capacity()) [[unlikely]]
      make_place();
    return all_.emplace_back();
  }
  void unpush() noexcept { all_.pop_back(); } // the last
  void pop() noexcept {
    if (++first_ == all_.size())
      clear();
  }
  void clear() noexcept {
    all_.clear();
    first_ = 0;
  }

private:
  [[gnu::noinline]] void make_place() {
    if (first_ > all_.size() / 2) { // what has left makes room before more is asked for
      all_.erase(all_.begin(), all_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;
      return;
    }
    all_.reserve(all_.empty() ? 1 : 2 * all_.size());
  }

  std::vector<T> all_;
  size_t first_ = 0;
};

} // namespace adverb::queue
