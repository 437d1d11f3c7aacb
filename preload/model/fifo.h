// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// First in, first out, in one piece of memory that is none until something is in it: most queue
// pairs never have any use for theirs.
#pragma once

#include <cstddef>
#include <vector>

namespace adverb::model {

template <typename T> class Fifo {
public:
  bool empty() const noexcept { return first_ == all_.size(); }
  T& front() noexcept { return all_[first_]; }
  T& back() noexcept { return all_.back(); }
  // May throw bad_alloc, and then has done nothing; not after reserve().
  T& push() {
    reserve(1);
    return all_.emplace_back();
  }
  void unpush() noexcept { all_.pop_back(); } // the last
  // Place for so many more.
  void reserve(size_t more) {
    if (all_.capacity() - all_.size() < more) [[unlikely]]
      make_place(more);
  }
  void pop() noexcept {
    if (++first_ == all_.size())
      clear();
  }
  void clear() noexcept {
    all_.clear();
    first_ = 0;
  }

private:
  [[gnu::noinline]] void make_place(size_t more) {
    if (first_ > all_.size() / 2) { // what has left makes room before more is asked for
      all_.erase(all_.begin(), all_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;
    }
    const size_t wanted = all_.size() + more;
    if (wanted > all_.capacity())
      all_.reserve(wanted > 2 * all_.capacity() ? wanted : 2 * all_.capacity());
  }

  std::vector<T> all_;
  size_t first_ = 0;
};

} // namespace adverb::model
