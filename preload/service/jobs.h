// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Jobs that wait, of several parties. Those of one in the order they came; between parties by
// deficit round robin (Shreedhar and Varghese, SIGCOMM 1995), so that who has many or large ones
// takes no larger share than who has one. And as jobs may sleep, each in a thread, of which there
// are few: a party may have as many under way as are left free (dynamic thresholds: Choudhury and
// Hahne, 1998), so that who has one alone may have half of them, and some are left for the next.
// Nothing is allocated for a job. Not thread-safe.
#pragma once

#include "service/service.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace adverb::service {

class Jobs {
public:
  /// As many may be under way, those that sleep.
  explicit Jobs(size_t most) noexcept : most_(most) {}
  Jobs(const Jobs&) = delete;
  Jobs& operator=(const Jobs&) = delete;

  bool empty() const noexcept { return last_ == nullptr; }
  void push(Job& job) noexcept {
    Party& party = job.party_ != nullptr ? *job.party_ : nobodys_;
    job.next_ = nullptr;
    (party.first_ == nullptr ? party.first_ : party.last_->next_) = &job;
    party.last_ = &job;
    if (party.next_ == nullptr)
      enter(party);
  }

  /// Whether begin() would find one.
  bool ready() const noexcept {
    const Party* one = last_;
    for (size_t i = 0; i < parties_; ++i, one = one->next_)
      if (may_begin(*one))
        return true;
    return false;
  }
  struct Begun {
    Job* job = nullptr;                     ///< null: there is none that may
    std::shared_ptr<Party> party = nullptr; ///< null: nobody's
  };
  /// Takes the next one, which is under way until end().
  Begun begin() noexcept {
    for (size_t passed = 0; passed < parties_;) {
      Party& party = *last_->next_;
      if (!may_begin(party)) {
        last_ = &party;
        ++passed;
        continue;
      }
      passed = 0;
      const uint32_t cost = std::max(party.first_->bytes_, least);
      if (party.credit_ < cost) {
        party.credit_ += quantum;
        last_ = &party;
        continue;
      }
      party.credit_ -= cost;
      return take(party);
    }
    return {};
  }
  /// One of that party's, begun, has come to its end.
  void end(const std::shared_ptr<Party>& party) noexcept {
    --(party != nullptr ? *party : nobodys_).under_way_;
    --under_way_;
  }

private:
  static constexpr uint32_t quantum = 16384; // bytes
  static constexpr uint32_t least = 512;     // what a job costs beside its bytes

  bool may_begin(const Party& party) const noexcept {
    return under_way_ < most_ && (&party == &nobodys_ || party.under_way_ < most_ - under_way_);
  }
  // Last of the ring.
  void enter(Party& party) noexcept {
    party.next_ = last_ == nullptr ? &party : last_->next_;
    if (last_ != nullptr)
      last_->next_ = &party;
    last_ = &party;
    ++parties_;
  }
  // The first of the ring's first.
  Begun take(Party& party) noexcept {
    Begun begun{party.first_, party.first_->party_};
    party.first_ = begun.job->next_;
    ++party.under_way_;
    ++under_way_;
    if (party.first_ == nullptr) {
      last_->next_ = party.next_;
      last_ = &party == last_ ? nullptr : last_;
      party.next_ = nullptr;
      party.credit_ = 0;
      --parties_;
    }
    return begun;
  }

  const size_t most_;
  size_t under_way_ = 0;
  Party* last_ = nullptr; // of the ring of those that have jobs; its next is the first
  size_t parties_ = 0;    // in the ring
  Party nobodys_;
};

} // namespace adverb::service
