// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What handlers leave to be done without the progress lock, by jobs of the service's, because it
// touches the program's memory and that may take long to come.
#pragma once

#include "memory/copy.h"
#include "service/service.h"
#include "world/sync.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

namespace adverb::link {

class Errand : public service::Job {
public:
  // What it touches, and for whom.
  struct Of {
    uint64_t target;     // handle of a queue pair
    const void* regions; // of a context
    uint32_t key;        // of one of them
    uintptr_t from;      // the program's memory, up to `to`
    uintptr_t to;
    bool lands; // that is written
  };
  virtual Of of() const noexcept = 0;

  // All three under the lock.
  // Whether it may still be done, as the objects that it concerns are now.
  virtual bool stands() noexcept = 0;
  // It is not begun now: another is at the same pages, and sleeps perhaps.
  virtual void put_aside() noexcept = 0;
  // It was put aside, and is to be posted again.
  virtual void again() noexcept = 0;

protected:
  ~Errand() = default;

private:
  friend class Errands;
  //   waiting -> begun -> awaited     by a barrier: it lands, and is waited for
  //              begun -> voided      by a barrier: what it reads is of no effect
  //   waiting -> stopped              by a barrier
  //   waiting <-> aside -> stopped    the same
  // Without the lock only `waiting` is left.
  enum class Phase : uint8_t { waiting, begun, awaited, voided, stopped, aside };
  bool under_way() const noexcept {
    const Phase phase = phase_.load();
    return phase == Phase::begun || phase == Phase::awaited || phase == Phase::voided;
  }
  bool meets(const Errand& other) const noexcept {
    constexpr uintptr_t page = 4096; // at least
    const Of a = of();
    const Of b = other.of();
    return a.from / page <= (b.to - 1) / page && b.from / page <= (a.to - 1) / page;
  }
  Atomic<Phase> phase_{Phase::waiting};
};

// What a barrier is for: all errands, those of a queue pair, or those of a region.
struct Scope {
  uint64_t target = 0;
  const void* regions = nullptr;
  uint32_t key = 0;
  bool holds(const Errand::Of& of) const noexcept {
    return (target == 0 || of.target == target) &&
           (regions == nullptr || (of.regions == regions && of.key == key));
  }
};

// Those of one device. All but begin() under its progress lock.
class Errands {
public:
  using Phase = Errand::Phase;

  // Listed from here to remove().
  void add(Errand& errand) {
    all_.push_back(&errand);
    errand.phase_.store(Phase::waiting);
  }
  // False: it is of no effect, for a barrier was before its end and has not waited.
  bool remove(Errand& errand) noexcept {
    std::erase(all_, &errand);
    const Phase phase = errand.phase_.load();
    if (!errand.under_way())
      return false;
    begun_.fetch_sub(1);
    if (phase == Phase::awaited)
      ended_.notify_all();
    for (Errand* const other : all_)
      if (other->phase_.load() == Phase::aside && other->meets(errand)) {
        other->phase_.store(Phase::waiting);
        other->again();
      }
    return phase != Phase::voided;
  }

  enum class Begun : uint8_t {
    yes,
    no,   // a barrier was first, and what it concerns may be gone
    aside // put_aside() was called, again() comes; who runs it touches it no more
  };
  // For who does it; takes the lock where others have begun. Two that begin at the same moment may
  // be at the same pages. One whose pages are all there goes on beside another that meets some of
  // them, and sleeps at one that is not.
  template <typename Lock> Begun begin(Errand& errand, Lock& lock) {
    if (begun_.load() != 0 && meets_another(errand, lock) && !has_its_pages(errand)) {
      const std::lock_guard hold(lock);
      Phase was = Phase::waiting;
      if (meets_another(errand) && errand.phase_.compare_exchange_strong(was, Phase::aside)) {
        errand.put_aside();
        return Begun::aside;
      }
    }
    Phase was = Phase::waiting;
    begun_.fetch_add(1); // before it can be removed
    if (errand.phase_.compare_exchange_strong(was, Phase::begun))
      return Begun::yes;
    begun_.fetch_sub(1);
    return Begun::no;
  }

  // As Progress::barrier(); `held` is the lock.
  template <typename Lock> void settle(const Scope& scope, Lock& held) {
    for (size_t i = 0; i < all_.size(); ++i)
      if (scope.holds(all_[i]->of()) && !all_[i]->stands())
        overrule(*all_[i]);
    ended_.wait(held, [&] {
      return std::ranges::none_of(all_, [&](const Errand* errand) {
        return errand->phase_.load() == Phase::awaited && scope.holds(errand->of());
      });
    });
  }

private:
  bool meets_another(const Errand& errand) const noexcept {
    return std::ranges::any_of(all_, [&](const Errand* other) {
      return other != &errand && other->under_way() && other->meets(errand);
    });
  }
  template <typename Lock> bool meets_another(const Errand& errand, Lock& lock) const {
    const std::lock_guard hold(lock);
    return meets_another(errand);
  }
  static bool has_its_pages(const Errand& errand) noexcept {
    const Errand::Of of = errand.of();
    return memory::is_here(reinterpret_cast<const void*>(of.from), of.to - of.from);
  }
  static void overrule(Errand& errand) noexcept {
    Phase was = Phase::waiting;
    if (errand.phase_.compare_exchange_strong(was, Phase::stopped))
      return;
    if (was == Phase::aside) {
      errand.phase_.store(Phase::stopped);
      errand.again(); // who runs it finds out
    } else if (was == Phase::begun) {
      errand.phase_.store(errand.of().lands ? Phase::awaited : Phase::voided);
    }
  }

  std::vector<Errand*> all_;
  Atomic<uint32_t> begun_{0};
  AnyConditionVariable ended_; // one that is awaited
};

} // namespace adverb::link
