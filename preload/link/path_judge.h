// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Whether a path is worth being carried by packets that adverb repairs, by what is measured of it.
//
// A reliable device sends everything again from a lost packet on (go-back-N), and so loses about a
// round trip with each. If a share p of packets is lost, that is p round trips for every packet.
// Packets of adverb's cost processors instead, some microseconds at both ends. They pay if the
// losses cost more than that, and are kept until the losses cost half of it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

namespace adverb::link {

class PathJudge {
public:
  using Time = std::chrono::nanoseconds;

  // `round_trip`: 0 if none was seen, and then nothing is judged. `loss`: share of packets. Whether
  // pays() has changed.
  bool judge(Time round_trip, double loss) noexcept {
    if (round_trip == Time{0})
      return false;
    near_ = of(round_trip, unlikely_loss) < packet_cost;
    clean_ = loss < clean_loss;
    const bool pays = of(round_trip, loss) > (pays_ ? packet_cost / 2 : packet_cost);
    return std::exchange(pays_, pays) != pays;
  }
  bool pays() const noexcept { return pays_; }

  // What to send now, and how long to wait then. `active`: the program has posted since the last
  // call.
  struct Sounding {
    uint32_t packets = 0;
    std::chrono::milliseconds pause{0};
  };
  Sounding next(bool active) noexcept {
    pause_ = !active ? std::min(2 * pause_, longest) : clean_ ? seldom : often;
    if (std::exchange(is_first_, false))
      return {at_first, often};
    if (near_)
      return {active ? at_times : 0, longest};
    return {active ? always : 0, pause_};
  }

private:
  static Time of(Time round_trip, double share) noexcept {
    return Time(static_cast<int64_t>(static_cast<double>(round_trip.count()) * share));
  }

  static constexpr Time packet_cost = std::chrono::microseconds(10);
  // A path that is so short that only more would matter is looked at now and then: its round trip
  // may become longer.
  static constexpr double unlikely_loss = 0.1;
  // Of a path that loses less, or nothing yet, little has to be known.
  static constexpr double clean_loss = 1e-4;
  static constexpr uint32_t at_first = 64, always = 16, at_times = 4; // packets
  static constexpr std::chrono::milliseconds often{50}, seldom{200}, longest{1000};

  bool pays_ = false;
  bool near_ = false;
  bool clean_ = false;
  bool is_first_ = true;
  std::chrono::milliseconds pause_ = often;
};

} // namespace adverb::link
