// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// For how long who has found nothing more looks again before it sleeps: a message that comes
// meanwhile costs no wake-up. What was looked for in vain is paid from an allowance of a quarter of
// the time, of the last 100 ms at most. And who loses its processor while it looks takes it from
// others that want it, and then waits for milliseconds where one that sleeps is woken at once: it
// does not look for the next 100 ms.
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>

namespace adverb::link {

class Spin {
public:
  using nanoseconds = std::chrono::nanoseconds;

  // `longest` after the last message; with one processor never, for then nobody can send meanwhile.
  Spin(nanoseconds longest, int processors) noexcept
      : longest_(processors > 1 ? longest : nanoseconds{0}) {}

  // How long it may look from now on.
  nanoseconds allowed(nanoseconds now) noexcept {
    earn(now);
    return now < not_before_ ? nanoseconds{0} : std::min(longest_, left_);
  }
  // A round of it has taken until now.
  void round(nanoseconds began, nanoseconds now) noexcept {
    if (now - began > unhindered)
      not_before_ = now + period;
  }
  // It has, and found nothing.
  void spent(nanoseconds in_vain, nanoseconds now) noexcept {
    earn(now);
    left_ -= std::min(left_, in_vain);
  }

private:
  static constexpr nanoseconds period = std::chrono::milliseconds(100);
  static constexpr nanoseconds most = period / 4;
  static constexpr nanoseconds unhindered = std::chrono::microseconds(200); // takes no round

  void earn(nanoseconds now) noexcept {
    left_ = std::min(most, left_ + (now - earned_until_) / 4);
    earned_until_ = now;
  }

  const nanoseconds longest_;
  nanoseconds left_ = most;
  nanoseconds earned_until_{0};
  nanoseconds not_before_{0};
};

} // namespace adverb::link
