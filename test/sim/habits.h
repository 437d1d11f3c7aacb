// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a program of a schedule likes to do. Half of them do a little of everything; the others have
// a few things that they do much of, and some that they never do: what two rare things do to each
// other is found by those who do nothing else.
#pragma once

#include "choices.h"
#include "oracle.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace sim {

class Habits {
public:
  explicit Habits(Choices& choices) : choices_(choices) {
    if (choices.once_in(2))
      return;
    for (uint32_t& weight : kinds_)
      weight = std::array<uint32_t, 4>{0, 1, 1, 4}[choices.below(4)];
    if (std::accumulate(kinds_.begin(), kinds_.end(), 0U) == 0)
      kinds_.fill(1);
    fenced_ = one_of({4, 1, 2, 0});
    quiet_ = one_of({3, 1, 8, 0});
    inlined_ = one_of({3, 1, 0, 0});
    large_ = one_of({3, 1, 8, 0});
    empty_ = one_of({12, 3, 0, 0});
    brought_ = one_of({2, 1, 1, 0});
    aside_ = one_of({2, 1, 4, 0});
    places_ = one_of({8, 1, 2, 4});
    most_ = one_of({4, 1, 2, 16});
    eager_ = one_of({3, 1, 6, 12});
    near_ = one_of({2, 1, 1, 0});
    // One request at a time, as most programs that time theirs: nothing about it takes a long way.
    if (choices.once_in(3)) {
      fenced_ = quiet_ = 0;
      most_ = places_ = 1;
      kinds_[static_cast<size_t>(Kind::send)] = 0;
      kinds_[static_cast<size_t>(Kind::read)] = 4;
      plain_ = one_of({1, 2, 3, 8});
    }
  }

  Kind kind() {
    uint32_t at = choices_.below(std::accumulate(kinds_.begin(), kinds_.end(), 0U));
    uint32_t which = 0;
    for (; at >= kinds_.at(which); ++which)
      at -= kinds_[which];
    return static_cast<Kind>(which);
  }
  bool fenced() { return yes(fenced_); }
  bool quiet() { return yes(quiet_); } // unsignaled
  bool inlined() { return yes(inlined_); }
  bool large() { return yes(large_); }
  bool empty() { return yes(empty_); }               // of no bytes
  bool brought() { return yes(brought_); }           // behind a fence: what an earlier READ brings
  bool near() { return yes(near_); }                 // by the key of the smaller of its own regions
  bool malformed() { return choices_.once_in(100); } // a list that ends in what no queue takes
  bool aside() { return yes(aside_); }               // by the key of the smaller region
  // Requests lie in few places, so that they meet.
  uint32_t place() { return choices_.below(places_) * 16 + choices_.below(3); }
  uint32_t most() const { return most_; } // requests of one call
  // Each by itself, with one element, and no more than so many under way; 0: as it comes.
  uint32_t plain() const { return plain_; }
  // Of so many things that it may do, all but two are posts.
  uint32_t eager() const { return eager_; }

private:
  bool yes(uint32_t once_in) { return once_in != 0 && choices_.once_in(once_in); }
  uint32_t one_of(const std::array<uint32_t, 4>& all) { return all.at(choices_.below(4)); }

  Choices& choices_;
  std::array<uint32_t, 5> kinds_{1, 1, 1, 1, 1};
  uint32_t fenced_ = 4;
  uint32_t quiet_ = 3;
  uint32_t inlined_ = 3;
  uint32_t large_ = 3;
  uint32_t empty_ = 16;
  uint32_t brought_ = 2;
  uint32_t aside_ = 3;
  uint32_t places_ = 8;
  uint32_t most_ = 4;
  uint32_t eager_ = 3;
  uint32_t near_ = 2;
  uint32_t plain_ = 0;
};

} // namespace sim
