// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// For how long who has found nothing more looks again before it sleeps: a message that comes
// meanwhile costs no wake-up. What was looked for in vain is paid from an allowance of a quarter of
// the time, of the last 100 ms at most. And nobody else is to wait for the processor it looks on: a
// program that looks at its memory there would learn later what it looks for, and who lost the
// processor in its turn would wait for milliseconds where one that sleeps is woken at once. So it
// offers the processor to others while it looks, and when that or rounds of its looking took long
// it does not look for the next 100 ms; when that happens again soon, for twice as long, up to 3 s.
// A hypervisor takes a processor now and then, too, whoever is on it and for nobody here, for a
// millisecond or two some times a second: 5 ms are forgiven, of a fiftieth of the time.
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
  // Something that takes next to no time has taken until now.
  void round(nanoseconds began, nanoseconds now) noexcept {
    const nanoseconds took = now - began;
    if (took <= unhindered)
      return;
    late_ -= std::min(late_, (now - late_at_) / forgiven_of);
    late_ += took;
    late_at_ = now;
    if (late_ <= forgiven)
      return;
    late_ = nanoseconds{0};
    pause_ = now - not_before_ < pause_ ? std::min(2 * pause_, pause_most) : period;
    not_before_ = now + pause_;
  }
  // It has, and found nothing.
  void spent(nanoseconds in_vain, nanoseconds now) noexcept {
    earn(now);
    left_ -= std::min(left_, in_vain);
  }

private:
  static constexpr nanoseconds period = std::chrono::milliseconds(100);
  static constexpr nanoseconds most = period / 4;
  static constexpr nanoseconds unhindered = std::chrono::microseconds(200);
  static constexpr nanoseconds forgiven = std::chrono::milliseconds(5);
  static constexpr int forgiven_of = 50;
  static constexpr nanoseconds pause_most = 32 * period;

  void earn(nanoseconds now) noexcept {
    left_ = std::min(most, left_ + (now - earned_until_) / 4);
    earned_until_ = now;
  }

  const nanoseconds longest_;
  nanoseconds left_ = most;
  nanoseconds earned_until_{0};
  nanoseconds pause_ = period; // the last one
  nanoseconds not_before_{0};  // it has ended
  nanoseconds late_{0};        // it has been by so much, less what is forgiven with time
  nanoseconds late_at_{0};
};

} // namespace adverb::link
