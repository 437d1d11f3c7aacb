// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Something a World has only one of and that a room above this one owns.
#pragma once

#include "world/sync.h"

#include <memory>

namespace adverb {

/// Made when it is first asked for. T may be incomplete except where it is made: the shared_ptr
/// remembers how to destroy it. Any thread.
template <typename T> class Part {
public:
  /// The part; `make` returns a std::shared_ptr<T> (or what turns into one) if there is none yet,
  /// and must not ask for the part itself.
  template <typename Make> T& get(Make&& make) {
    if (T* here = here_.load(std::memory_order_acquire)) [[likely]]
      return *here;
    const std::lock_guard hold(lock_);
    if (here_.load(std::memory_order_relaxed) == nullptr) {
      owner_ = make();
      here_.store(owner_.get(), std::memory_order_release);
    }
    return *here_.load(std::memory_order_relaxed);
  }

  /// Null while nobody has asked for it.
  T* made() const noexcept { return here_.load(std::memory_order_acquire); }

  /// A test's own, before anybody asks.
  void put(std::shared_ptr<T> part) {
    const std::lock_guard hold(lock_);
    owner_ = std::move(part);
    here_.store(owner_.get(), std::memory_order_release);
  }

  /// In a fork child: what there is stays as it is, or is left as it stands (leaked: it is the
  /// parent's, and its locks may be held for ever) and made anew when next asked for.
  void keep_in_child() noexcept { renew(lock_); }
  void abandon_in_child() noexcept {
    renew(lock_);
    new (&owner_) std::shared_ptr<T>;
    here_.store(nullptr, std::memory_order_release);
  }

private:
  Atomic<T*> here_{nullptr};
  Mutex lock_;
  std::shared_ptr<T> owner_;
};

} // namespace adverb
