// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "steering/steer.h"

#include <algorithm>
#include <utility>

namespace adverb::steering {
namespace {

constexpr uint32_t epoch_least = 128;
constexpr double margin = 1.05;        // by which a choice has to be better
constexpr double changed = 1.25;       // a rate that has: something else is better, perhaps
constexpr double memory = 0.25;        // weight of the latest epoch
constexpr uint32_t interval_most = 64; // epochs
constexpr uint32_t alarm_after = 4;    // this part of the interval, an alarm may have a probe begin
constexpr size_t choices = 3;
constexpr uint32_t of_note = 8; // one in so many requests, and a class is worth a probe

} // namespace

Steer::Steer(std::vector<policy::SteerRule> rules, Clock& clock, uint32_t outstanding)
    : rules_(std::move(rules)), clock_(clock),
      epoch_(std::max(epoch_least, 2 * std::bit_ceil(outstanding))), left_(epoch_),
      began_(clock.now()) {}

void Steer::end_epoch() noexcept {
  const auto now = clock_.now();
  const auto took = std::max<int64_t>((now - began_).count(), 1);
  const double rate = static_cast<double>(epoch_) / static_cast<double>(took);
  switch (stage_) {
  case Stage::steady:
    steady(rate);
    break;
  case Stage::settling: // what the choice before had outstanding is through
    stage_ = Stage::probing;
    break;
  case Stage::probing:
    probed(rate);
    break;
  case Stage::returning:
    stage_ = Stage::steady;
    break;
  }
  for (Class& c : classes_)
    c.requests = 0;
  began_ = now;
  left_ = epoch_;
}

// One rate that differs may be chance: of two the workload is another, or the peer. So that a host
// whose speed wavers has few probes in vain, those that were have an alarm wait, too.
void Steer::steady(double rate) noexcept {
  const bool differs = rate_ != 0 && (rate > changed * rate_ || rate * changed < rate_);
  const bool twice = differs && std::exchange(differed_, differs);
  if (twice) {
    rate_ = rate;
    if (interval_ - until_probe_ >= interval_ / alarm_after)
      until_probe_ = 1;
  }
  if (twice || !differs) {
    differed_ = false;
    rate_ = rate_ == 0 ? rate : rate_ + memory * (rate - rate_);
  }
  if (--until_probe_ == 0)
    begin_probe();
}

// The next choice by turns that does not stand, of a class that matters.
void Steer::begin_probe() noexcept {
  for (size_t tries = 0; tries < classes_count * choices; ++tries) {
    const size_t c = next_ / choices % classes_count;
    const auto choice = static_cast<Choice>(next_ % choices);
    next_ = (next_ + 1) % (classes_count * choices);
    if (choice == classes_[c].choice || classes_[c].requests * of_note < epoch_)
      continue;
    probed_ = c;
    before_ = std::exchange(classes_[c].choice, choice);
    stage_ = Stage::settling;
    ++probes_;
    return;
  }
  until_probe_ = interval_;
}

// It stays if it was better twice.
void Steer::probed(double rate) noexcept {
  const bool better = rate > margin * rate_;
  if (better && !std::exchange(was_better_, true)) {
    rate_found_ = rate;
    return;
  }
  was_better_ = false;
  if (better) {
    rate_ = (rate + rate_found_) / 2;
    interval_ = 1;
    stage_ = Stage::steady;
    ++switches_;
  } else {
    classes_[probed_].choice = before_;
    interval_ = std::min(2 * interval_, interval_most);
    stage_ = Stage::returning;
  }
  until_probe_ = interval_;
}

} // namespace adverb::steering
