// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link.h"

namespace adverb::loopback {

namespace {

// The finalizer of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
// generators, OOPSLA 2014): a bijection whose output bits all depend on all input bits.
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

uint64_t mix(uint64_t x) {
  x += kGolden;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

} // namespace

Lane::Lane(const LinkSetting& setting, uint32_t queue_pair)
    : setting_(setting), key_(mix(mix(setting.seed) + queue_pair)) {}

bool Lane::chance(double probability, Draw purpose, uint32_t copy) const {
  if (probability <= 0)
    return false;
  const uint64_t salt =
      static_cast<uint64_t>(purpose) + copy * static_cast<uint64_t>(Draw::copies) + 1;
  const uint64_t drawn = mix(mix(key_ + ordinal_) ^ salt * kGolden);
  return static_cast<double>(drawn >> 11) * 0x1p-53 < probability;
}

// Two states (Gilbert: Capacity of a burst-noise channel, BSTJ 1960): a burst loses every packet
// and ends with probability 1 / mean length. It begins so often that the mean loss is as set.
bool Lane::lost() {
  const double loss = setting_.loss;
  if (setting_.burst == 0 || loss >= 1 || ordinal_ == 0) {
    in_burst_ = chance(loss, Draw::burst);
  } else {
    const double ends = 1 / setting_.burst;
    const double begins = ends * loss / (1 - loss);
    in_burst_ = in_burst_ ? !chance(ends, Draw::burst) : chance(begins, Draw::burst);
  }
  return in_burst_;
}

Way Lane::way_of(uint32_t copy) const {
  if (chance(setting_.late, Draw::late, copy))
    return Way::late;
  return chance(setting_.reorder, Draw::reorder, copy) ? Way::held : Way::prompt;
}

Fate Lane::next_packet() {
  Fate fate;
  if (lost())
    fate.copies = 0;
  else if (chance(setting_.duplicate, Draw::duplicate))
    fate.copies = 2;
  for (uint32_t copy = 0; copy < fate.copies; ++copy)
    fate.way[copy] = way_of(copy);
  ++ordinal_;
  return fate;
}

Fate Lane::next_message(uint32_t packets) {
  if (packets == 1)
    return next_packet();
  Fate message;
  for (uint32_t i = 0; i < packets; ++i)
    if (const Fate fate = next_packet(); fate.copies != 1 || fate.way[0] != Way::prompt)
      message.copies = 0;
  return message;
}

void Lane::hold(Ticket ticket) {
  held_.push_back({ordinal_ + setting_.reorder_span, ticket});
}

bool Lane::overtaken(Ticket& ticket) {
  if (held_.empty() || held_.front().until > ordinal_)
    return false;
  ticket = held_.front().ticket;
  held_.pop_front();
  return true;
}

} // namespace adverb::loopback
