// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// When the receiver reports, and what.
#include "reliability/receiver.h"
#include "reliability/receiver_parts.h"

#include <algorithm>

namespace adverb::reliability {
namespace {

constexpr Time soonest = std::chrono::microseconds(50); // between two reports
constexpr Time latest = std::chrono::milliseconds(50);
constexpr uint32_t idle_reports = 3; // after the last packet; then the sender's probes ask
constexpr size_t sections_most = 16; // of one report

} // namespace

// Four reports a round trip; what is urgent may be said four times as often.
Time Receiver::interval() const noexcept {
  const Time regular = std::clamp(round_trip_ / 4, soonest, latest);
  return urgent_ ? std::clamp(round_trip_ / 16, soonest, regular) : regular;
}

Time Receiver::wake(Time now) const {
  Time at = Time::max();
  if (urgent_ || unsaid_ || going_on_ || (open_begun() && idle_told_ < idle_reports))
    at = going_on_ ? now : told_at_ + interval();
  for (const auto& m : messages_) {
    if (m == nullptr || m->end != End::open)
      continue;
    if (m->deadline != Time{0})
      at = std::min(at, m->deadline);
    if (m->begun)
      at = std::min(at, heard_at_ + options_.silence);
  }
  for (const Ended& each : ended_)
    if (each.to_say != 0) {
      at = std::min(at, told_at_ + interval());
      break;
    }
  return at == Time::max() ? at : std::max(now, at);
}

bool Receiver::open_begun() const noexcept {
  return std::any_of(messages_.begin(), messages_.end(),
                     [](const auto& m) { return m != nullptr && m->begun && m->end == End::open; });
}

// Deadlines and silence end messages.
void Receiver::expire(Time now) {
  if (open_ == 0)
    return;
  for (size_t i = 0; i < messages_.size(); ++i) {
    Message* const m = messages_[i].get();
    if (m == nullptr || m->end != End::open)
      continue;
    if (m->deadline != Time{0} && now >= m->deadline)
      end(*m, End::partial);
    else if (m->begun && now - heard_at_ >= options_.silence)
      end(*m, End::silent);
  }
}

std::optional<Feedback> Receiver::feedback(Time now, size_t words) {
  if (open_ == 0 && ended_.empty() && !urgent_ && !unsaid_ && !going_on_)
    return std::nullopt; // an end that only sends asks for each packet
  expire(now);
  const bool ends_to_say =
      std::any_of(ended_.begin(), ended_.end(), [](const Ended& each) { return each.to_say != 0; });
  const bool regular = unsaid_ || ends_to_say || (open_begun() && idle_told_ < idle_reports);
  if (!going_on_ && ((!urgent_ && !regular) || (ever_told_ && now < told_at_ + interval())))
    return std::nullopt;
  if (!going_on_)
    ++idle_told_;
  Feedback out;
  out.highest = highest_;
  out.held_for = highest_ == 0 ? 0 : static_cast<uint64_t>((now - highest_at_).count());
  out.arrived = arrived_;
  out.duplicates = stats_.duplicates;
  out.starved = stats_.starved;
  out.credit = highest_ + options_.receives - options_.headroom;
  out.granted = next_message_;
  for (Ended& each : ended_)
    if (each.to_say != 0 && out.sections.size() < sections_most) {
      --each.to_say;
      out.sections.push_back({each.message, each.end, false, 0, 0, {}});
    }
  going_on_ = say_open(out, words);
  told_at_ = now;
  ever_told_ = true;
  arrived_told_ = arrived_;
  urgent_ = unsaid_ = false;
  return out;
}

// A section of each message that has begun; whether some found no room.
bool Receiver::say_open(Feedback& out, size_t words) {
  for (const auto& m : messages_) {
    if (m == nullptr || !m->begun || m->end != End::open)
      continue;
    const uint32_t from = std::max(m->said_to, m->base);
    if (going_on_ && m->said_to != 0 && from >= m->seen)
      continue; // said in an earlier part
    if (words == 0 || out.sections.size() == sections_most)
      return true;
    Section section{m->number, End::open, false, std::min(m->base * word_bits, m->total), from, {}};
    const auto count =
        static_cast<uint32_t>(std::min<size_t>(words, m->seen > from ? m->seen - from : 0));
    section.packets.assign(m->packets.begin() + from, m->packets.begin() + from + count);
    section.rest_missing = from + count >= m->seen;
    words -= count;
    m->said_to = std::max(from + count, 1U);
    const bool all = section.rest_missing;
    out.sections.push_back(std::move(section));
    if (!all)
      return true;
  }
  for (const auto& m : messages_)
    if (m != nullptr)
      m->said_to = 0;
  return false;
}

} // namespace adverb::reliability
