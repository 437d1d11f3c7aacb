// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "reliability/simulation.h"

#include "reliability/receiver.h"
#include "reliability/sender.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>

namespace adverb::reliability {
namespace {

struct Arrival {
  Time at{0};
  Run run;
  uint64_t packets = 0; // of the run, those that arrive
};

struct Report {
  Time at{0};
  Feedback feedback;
};

constexpr size_t report_words = 450; // of a bitmap, in one packet of 4 KiB

uint64_t highest_of(const Run& run, uint64_t packets) noexcept {
  const int last = 63 - std::countl_zero(packets);
  return run.sequence +
         static_cast<uint64_t>(
             std::popcount(run.packets & bits(0, static_cast<uint32_t>(last) + 1))) -
         1;
}

} // namespace

RandomLoss::RandomLoss(double chance, std::mt19937_64& random) : chance_(chance) {
  draw(random);
}

void RandomLoss::draw(std::mt19937_64& random) {
  if (chance_ <= 0) {
    before_loss_ = UINT64_MAX;
    return;
  }
  const double u = std::uniform_real_distribution<double>(0, 1)(random);
  constexpr double longest = 1e18;
  before_loss_ = static_cast<uint64_t>(std::min(longest, std::log1p(-u) / std::log1p(-chance_)));
}

uint64_t RandomLoss::survivors(uint64_t packets, std::mt19937_64& random) {
  const uint64_t count = count_of(packets);
  if (before_loss_ >= count) {
    before_loss_ -= before_loss_ == UINT64_MAX ? 0 : count;
    return packets;
  }
  uint64_t out = 0;
  for (; packets != 0; packets &= packets - 1) {
    if (before_loss_ == 0) {
      draw(random);
      continue;
    }
    --before_loss_;
    out |= packets & -packets;
  }
  return out;
}

Simulation::Simulation(const SimulatedLink& link, uint64_t seed)
    : link_(link), random_(seed), packets_(link.loss, random_),
      reports_(link.report_loss.value_or(link.loss), random_) {}

std::optional<SimulatedMessage> Simulation::send(const Layout& layout, const Scheme& scheme,
                                                 double alpha) {
  SenderOptions from;
  from.cut = layout.cut;
  from.rate = {link_.bytes_per_second, link_.loss, layout.cut.packet_bytes};
  from.alpha = alpha;
  from.credit = UINT64_MAX / 2;
  from.granted = 1;
  const auto wire_time = [&](uint64_t packets) {
    const auto bytes = static_cast<double>(packets * layout.cut.packet_bytes);
    return Time(static_cast<int64_t>(bytes / link_.bytes_per_second * 1e9));
  };
  // A run is one event, so its time on the wire is kept far below a round trip.
  constexpr double run_share = 1.0 / 512;
  const double packets_per_run = static_cast<double>(link_.round_trip.count()) * run_share *
                                 link_.bytes_per_second / 1e9 / layout.cut.packet_bytes;
  from.run_packets = static_cast<uint32_t>(std::clamp<double>(packets_per_run, 1, word_bits));
  from.round_trip = link_.round_trip + wire_time(from.run_packets);
  constexpr int patience = 1000; // round trips and runs without a sign
  from.silence = std::max<Time>(std::chrono::seconds(10), patience * from.round_trip);
  ReceiverOptions to;
  to.cut = layout.cut;
  to.receives = UINT64_MAX / 4;
  to.silence = from.silence;
  Sender sender(from);
  Receiver receiver(to);
  receiver.round_trip(from.round_trip);
  receiver.post(layout.bytes);
  const MessageHead head{sender.post(layout.bytes, scheme), layout.bytes, scheme, 0};
  std::deque<Arrival> arrivals;
  std::deque<Report> reports;
  const Time one_way = link_.round_trip / 2;
  Time now{1};
  Time link_free{0};
  const Time began = now;
  for (;;) {
    while (const auto run = sender.next(now)) {
      const bool has_payload = run->kind == Kind::data || run->kind == Kind::parity;
      link_free =
          std::max(link_free, now) + (has_payload ? wire_time(count_of(run->packets)) : Time{0});
      if (const uint64_t left = packets_.survivors(run->packets, random_); left != 0)
        arrivals.push_back({link_free + one_way, *run, left});
    }
    if (const auto event = sender.take_event()) {
      if (event->end != End::complete)
        return std::nullopt;
      const SenderStats& stats = sender.stats();
      return SimulatedMessage{now - began, stats.packets, stats.repairs, stats.parity};
    }
    while (const auto feedback = receiver.feedback(now, report_words))
      if (reports_.survivors(1, random_) != 0)
        reports.push_back({now + one_way, *feedback});
    Time at = std::min(sender.wake(now), receiver.wake(now));
    if (!arrivals.empty())
      at = std::min(at, arrivals.front().at);
    if (!reports.empty())
      at = std::min(at, reports.front().at);
    now = std::max(now, at);
    for (; !arrivals.empty() && arrivals.front().at <= now; arrivals.pop_front()) {
      const Arrival& a = arrivals.front();
      const uint64_t fresh = receiver.arrive(head, a.run.kind, a.run.word, a.packets,
                                             highest_of(a.run, a.packets), now);
      if (a.run.kind == Kind::data)
        receiver.placed(head.message, a.run.word, fresh);
      receiver.check(head.message, a.run.kind, a.run.word, fresh);
      while (const auto column = receiver.take_decodable())
        receiver.decoded(*column);
    }
    for (; !reports.empty() && reports.front().at <= now; reports.pop_front())
      sender.hear(reports.front().feedback, now);
  }
}

} // namespace adverb::reliability
