// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Two parties under a virtual clock, and between them a link that loses, repeats, reorders, delays
// and cuts by a seed. Buffers stand between guard bytes, and every byte that a party may not write
// is compared.
#pragma once

#include "reliability/party.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace reliability_test {

using namespace adverb::reliability;
using namespace std::chrono_literals;

struct Faults {
  double loss = 0;
  double burst = 1; // packets lost in a row, in the mean
  double duplicate = 0;
  double reorder = 0; // share of packets that are held back for up to a round trip
  double late = 0;    // share that comes again after up to twenty round trips
  double garble = 0;  // share whose bytes change
};

// One direction.
class Pipe {
public:
  Pipe(const Faults& faults, Time delay, uint64_t seed)
      : faults_(faults), delay_(delay), random_(seed) {}

  void send(std::span<const std::byte> packet, Time now) {
    ++sent;
    if (cut)
      return;
    const bool lose =
        lossy_ ? chance(1 - 1 / faults_.burst)
               : chance(faults_.loss / (faults_.burst * (1 - faults_.loss) + faults_.loss));
    lossy_ = lose;
    if (chance(faults_.late))
      put(packet, now + delay_ * (2 + static_cast<int64_t>(random_() % 40)));
    if (lose)
      return;
    put(packet,
        now + delay_ + (chance(faults_.reorder) ? Time(random_() % (2 * delay_.count())) : 0ns));
    if (chance(faults_.duplicate))
      put(packet, now + delay_ + Time(random_() % (2 * delay_.count())));
  }
  void set_delay(Time delay) { delay_ = delay; }
  void set_loss(double loss) { faults_.loss = loss; }
  Time next() const { return under_way_.empty() ? Time::max() : under_way_.begin()->first; }
  std::vector<std::byte> take() {
    auto packet = std::move(under_way_.begin()->second);
    under_way_.erase(under_way_.begin());
    return packet;
  }

  bool cut = false;
  uint64_t sent = 0;

private:
  bool chance(double p) {
    return p > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < p;
  }
  void put(std::span<const std::byte> packet, Time at) {
    std::vector<std::byte> copy(packet.begin(), packet.end());
    if (chance(faults_.garble))
      copy[random_() % copy.size()] ^= static_cast<std::byte>(1 + random_() % 255);
    under_way_.emplace(at, std::move(copy));
  }

  Faults faults_;
  Time delay_;
  std::mt19937_64 random_;
  bool lossy_ = false;
  std::multimap<Time, std::vector<std::byte>> under_way_;
};

// A buffer of a program, with what lies around it.
class Buffer {
public:
  explicit Buffer(size_t bytes) : bytes_(bytes), all_(bytes + 2 * guard, poison) {}
  std::byte* data() { return all_.data() + guard; }
  size_t size() const { return bytes_; }
  void fill(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (size_t i = 0; i < bytes_; i += sizeof(uint64_t)) {
      const uint64_t word = random();
      memcpy(data() + i, &word, std::min(sizeof word, bytes_ - i));
    }
  }
  bool guards_stand() const {
    for (size_t i = 0; i < guard; ++i)
      if (all_[i] != poison || all_[guard + bytes_ + i] != poison)
        return false;
    return true;
  }
  static constexpr std::byte poison{0xA5};

private:
  static constexpr size_t guard = 64;
  size_t bytes_;
  std::vector<std::byte> all_;
};

struct Pair {
  Pair(const PartyOptions& base, const Faults& faults, Time delay, uint64_t seed)
      : cut(base.cut), there(faults, delay, seed * 2 + 1), back(faults, delay, seed * 2 + 2) {
    PartyOptions a = base;
    a.epoch_out = seed + 1000;
    a.epoch_in = seed + 2000;
    PartyOptions b = base;
    b.epoch_out = a.epoch_in;
    b.epoch_in = a.epoch_out;
    left = std::make_unique<Party>(a);
    right = std::make_unique<Party>(b);
  }

  // What is due now, and then the next moment at which something is; false: nothing ever, or not
  // before `until`.
  bool step(Time until = Time::max()) {
    drain(*left, there, left_sleeps);
    drain(*right, back, right_sleeps);
    const Time at =
        std::min({left_sleeps ? Time::max() : left->wake(now),
                  right_sleeps ? Time::max() : right->wake(now), there.next(), back.next()});
    if (at == Time::max() || at > until)
      return false;
    now = std::max(now, at);
    while (there.next() <= now) {
      const auto packet = there.take();
      if (!right_sleeps)
        right->take_packet(packet, now);
    }
    while (back.next() <= now) {
      const auto packet = back.take();
      if (!left_sleeps)
        left->take_packet(packet, now);
    }
    return true;
  }
  void drain(Party& party, Pipe& pipe, bool sleeps) {
    if (sleeps)
      return;
    std::vector<std::byte> packet(sizeof(wire::Header) + cut.packet_bytes);
    while (const size_t bytes = party.next_packet(packet, now)) {
      wire::Header header;
      memcpy(&header, packet.data(), sizeof header);
      const bool has_bytes = header.kind == Kind::data || header.kind == Kind::parity;
      if (&party == left.get() && has_bytes && sends_over.contains(header.message))
        throw std::logic_error("a packet of a send that is over was made: its buffer was read");
      pipe.send(std::span(packet).first(bytes), now);
    }
  }

  Cut cut;
  Time now{1s};
  Pipe there; // from left to right
  Pipe back;
  std::unique_ptr<Party> left;
  std::unique_ptr<Party> right;
  std::set<uint64_t> sends_over; // whose events the left program has had
  bool left_sleeps = false;      // it is stopped: packets to it are lost, its timers stand
  bool right_sleeps = false;
};

} // namespace reliability_test
