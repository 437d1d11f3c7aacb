// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "steering/steer.h"

#include <algorithm>
#include <utility>

namespace adverb::steering {
namespace {

constexpr uint32_t epoch_least = 128;
constexpr double margin = 1.05;           // by which a choice has to be better
constexpr double changed = 1.25;          // a rate that has: something else is better, perhaps
constexpr double memory = 0.25;           // weight of the latest epoch
constexpr uint32_t interval_most = 64;    // epochs to the next probe; more, up to the limit, where
constexpr uint32_t interval_limit = 4096; // the last one took more than
constexpr double probe_cost = 0.01;       // this part of the time
constexpr double probe_epochs = 2;        // at the rate of what is tried
constexpr uint32_t alarm_most = 128;      // epochs
constexpr std::chrono::milliseconds pause_least{200}; // without the peer's CPU
constexpr std::chrono::milliseconds pause_most{12'800};
constexpr size_t choices = 3;
constexpr uint32_t of_note = 8; // one in so many requests, and a class is worth a probe

} // namespace

Steer::Steer(std::vector<policy::SteerRule> rules, Clock& clock, uint32_t outstanding,
             observe::Trace* trace, uint32_t qpn)
    : rules_(std::move(rules)), clock_(clock), trace_(trace), qpn_(qpn),
      epoch_(std::max(epoch_least, 2 * std::bit_ceil(outstanding))), left_(epoch_),
      began_(clock.now()) {}

void Steer::end_epoch() noexcept {
  const auto now = clock_.now();
  const auto took = std::max<int64_t>((now - began_).count(), 1);
  const double rate = static_cast<double>(epoch_) / static_cast<double>(took);
  switch (stage_) {
  case Stage::steady:
    steady(rate, now);
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
  begin_epoch(now);
}

void Steer::begin_epoch(std::chrono::nanoseconds now) noexcept {
  for (Class& c : classes_)
    c.requests = 0;
  began_ = now;
  left_ = epoch_;
}

bool Steer::spare_cpu() noexcept {
  const auto now = clock_.now();
  if (now < spared_until_) // word of what was under way
    return false;
  const bool soon = pause_.count() != 0 && now - spared_until_ < pause_;
  pause_ = soon ? std::min<std::chrono::nanoseconds>(2 * pause_, pause_most) : pause_least;
  spared_until_ = now + pause_;
  stage_ = Stage::steady;
  differed_ = was_better_ = false;
  rate_ = 0;
  for (size_t c = 0; c < classes_count; ++c)
    if (std::exchange(classes_[c].choice, Choice::device) != Choice::device)
      tell_choice(c);
  interval_ = wait_ = until_probe_ = 1;
  begin_epoch(now);
  return true;
}

// One rate that differs may be chance: of two the workload is another, or the peer. If what stands
// has become slower, something else may be better now. So that a host whose speed wavers has few
// probes in vain, those that were have an alarm wait, too.
void Steer::steady(double rate, std::chrono::nanoseconds now) noexcept {
  const bool differs = rate_ != 0 && (rate > changed * rate_ || rate * changed < rate_);
  const bool twice = differs && std::exchange(differed_, differs);
  if (twice) {
    if (std::exchange(rate_, rate) > rate)
      raise_alarm();
  }
  if (twice || !differs) {
    differed_ = false;
    rate_ = rate_ == 0 ? rate : rate_ + memory * (rate - rate_);
  }
  if (--until_probe_ != 0)
    return;
  if (now < spared_until_)
    until_probe_ = 1;
  else
    begin_probe();
}

// The others are tried, if not just now.
void Steer::raise_alarm() noexcept {
  const uint32_t waited = wait_ - until_probe_;
  until_probe_ = std::min(until_probe_, alarm_wait_ > waited ? alarm_wait_ - waited : 1);
  in_a_row_ = choices - 1;
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
  until_probe_ = wait_;
}

void Steer::tell_choice(size_t c) noexcept {
  if (trace_ != nullptr)
    trace_->add({.qpn = qpn_,
                 .kind = observe::TraceKind::steer,
                 .first = static_cast<uint8_t>(c),
                 .second = static_cast<uint8_t>(classes_[c].choice),
                 .address = rate_ > 0 ? static_cast<uint64_t>(1000 / rate_) : 0});
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
    interval_ = wait_ = 1;
    alarm_wait_ = alarm_least;
    stage_ = Stage::steady;
    ++switches_;
    tell_choice(probed_);
  } else {
    classes_[probed_].choice = before_;
    const double lost = probe_epochs * (rate_ / rate - 1); // epochs
    const double most = std::min<double>(lost / probe_cost, interval_limit);
    interval_ = std::min(2 * interval_, interval_limit);
    wait_ = std::min(interval_, std::max(interval_most, static_cast<uint32_t>(most)));
    stage_ = Stage::returning;
  }
  until_probe_ = wait_;
  if (better || in_a_row_ == 0)
    in_a_row_ = 0;
  else if (--in_a_row_ != 0)
    until_probe_ = 1;
  else
    alarm_wait_ = std::min(2 * alarm_wait_, alarm_most);
}

} // namespace adverb::steering
