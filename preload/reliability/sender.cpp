// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "reliability/sender.h"
#include "reliability/sender_parts.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace adverb::reliability {
namespace {

// The pace is kept over so long, or over this part of a round trip: a thread that wakes late
// catches up. What it could not catch up would arrive as a lower rate, which the controller would
// follow.
constexpr Time pace_slack = std::chrono::milliseconds(1);
constexpr int pace_slack_part = 8;
// Packets go in bursts of so long, as to wake up for each costs more than to send it.
constexpr int burst_part = 16; // of a round trip
constexpr Time burst_most = std::chrono::milliseconds(4);
constexpr Time probe_first = std::chrono::milliseconds(20); // before a round trip was seen
constexpr Time probe_slowest = std::chrono::seconds(1);
constexpr int silent_timeouts = 3;     // after so many without feedback only probes are sent
constexpr uint64_t probes_beyond = 16; // credit: the receiver keeps room for them

uint64_t lowest(uint64_t packets, uint64_t count) noexcept {
  if (static_cast<uint64_t>(std::popcount(packets)) <= count)
    return packets;
  uint64_t out = 0;
  for (; count != 0; --count) {
    out |= packets & -packets;
    packets &= packets - 1;
  }
  return out;
}

} // namespace

SenderMessage::SenderMessage(uint64_t number_, const Layout& layout_, const Scheme& scheme_,
                             bool ready_)
    : number(number_), layout(layout_), scheme(scheme_), total(layout_.packets()),
      final_(words_of(total)), fresh(words_of(total)), repair(words_of(total)) {
  if (scheme.has_parity()) {
    blocks = {layout, scheme.k, scheme.m};
    of_block.resize(blocks.count());
    for (uint32_t b = 0; b < of_block.size(); ++b)
      of_block[b].unsent = blocks.end_packet(b) - blocks.first_packet(b);
  }
  if (scheme.unit == Unit::chunk)
    again_at.resize(layout.chunks());
  streaming = !ready_;
  if (streaming)
    return;
  for (uint32_t w = 0; w < fresh.size(); ++w)
    fresh[w] = bits(0, std::min(word_bits, total - w * word_bits));
  fresh_left = total;
}

void SenderMessage::make_ready(uint32_t first, uint32_t end) {
  end = std::min(end, total);
  for (uint32_t p = first; p < end; ++p) {
    uint64_t& word = fresh[p / word_bits];
    const uint64_t bit = bits(p % word_bits, 1);
    if ((word & bit) != 0 || (!ready.empty() && (ready[p / word_bits] & bit) != 0))
      continue;
    if (ready.empty())
      ready.resize(fresh.size());
    ready[p / word_bits] |= bit;
    word |= bit;
    ++fresh_left;
  }
  fresh_at = std::min<uint32_t>(fresh_at, first / word_bits);
}

// Of a word those packets that are data of a block.
uint64_t SenderMessage::in_block(uint32_t number, uint32_t word) const noexcept {
  const uint32_t from = std::max(blocks.first_packet(number), word * word_bits);
  const uint32_t to = std::min(blocks.end_packet(number), (word + 1) * word_bits);
  return from < to ? bits(from % word_bits, to - from) : 0;
}

void SenderMessage::again(uint64_t packets, uint32_t word) {
  packets &= ~final_[word] & ~repair[word];
  repair[word] |= packets;
  repairs += count_of(packets);
  if (packets != 0)
    repair_at = std::min(repair_at, word);
}

// A whole chunk goes, what has arrived of it included; not what has not gone yet.
void SenderMessage::again_whole(uint32_t packet) {
  uint64_t& word = repair[packet / word_bits];
  const uint64_t bit = bits(packet % word_bits, 1);
  if ((fresh[packet / word_bits] & bit) != 0 ||
      (streaming && (ready.empty() || (ready[packet / word_bits] & bit) == 0)))
    return;
  repairs += (word & bit) == 0 ? 1 : 0;
  word |= bit;
  repair_at = std::min(repair_at, packet / word_bits);
}

Sender::Sender(const SenderOptions& options)
    : options_(options), rate_(options.rate, options.round_trip), credit_(options.credit),
      granted_(options.granted) {
  assert(options.cut.valid() && options.run_packets >= 1 && options.run_packets <= word_bits);
}

Sender::~Sender() = default;

uint64_t Sender::post(uint64_t bytes, const Scheme& scheme, bool ready) {
  assert(scheme.valid() && Layout::fits(options_.cut, bytes));
  messages_.push_back(
      std::make_unique<Message>(next_message_, Layout{options_.cut, bytes}, scheme, ready));
  return next_message_++;
}

auto Sender::find(uint64_t message) noexcept -> Message* {
  // Mostly no message ends before an earlier one, so that there are no gaps.
  if (messages_.empty() || message < messages_.front()->number)
    return nullptr;
  const uint64_t most = message - messages_.front()->number;
  if (most < messages_.size() && messages_[most]->number == message)
    return messages_[most].get();
  const auto at = std::lower_bound(messages_.begin(), messages_.end(), message,
                                   [](const auto& m, uint64_t n) { return m->number < n; });
  return at != messages_.end() && (*at)->number == message ? at->get() : nullptr;
}

void Sender::make_ready(uint64_t message, uint32_t first, uint32_t end) {
  if (Message* const m = find(message))
    m->make_ready(first, end);
}

void Sender::cancel(uint64_t message) {
  if (Message* const m = find(message))
    m->cancelling = true;
}

uint64_t Sender::allowed() const noexcept {
  const uint64_t window = rate_.window();
  return std::min({uint64_t{options_.run_packets}, credit_ > sequence_ ? credit_ - sequence_ : 0,
                   window > under_way_ ? window - under_way_ : 0});
}

Run Sender::sent(Kind kind, uint64_t message, uint32_t word, uint64_t packets, Time now) {
  const uint64_t count = count_of(packets);
  const Run run{kind, message, word, packets, sequence_};
  log_.push_back({sequence_, static_cast<uint32_t>(count), packets, now, message, word, kind});
  sequence_ += count;
  last_sent_ = now;
  if (kind == Kind::probe || kind == Kind::cancel) {
    log_.back().packets = 0; // nothing depends on it
    ++stats_.probes;
    return run;
  }
  under_way_ += count;
  payload_end_ = sequence_;
  stats_.packets += count;
  probes_in_a_row_ = 0;
  const auto bytes = static_cast<double>(count * options_.cut.packet_bytes);
  const Time slack = std::max(pace_slack, rate_.shortest_round_trip() / pace_slack_part);
  may_send_ = std::max(may_send_, now - slack) +
              Time(static_cast<int64_t>(bytes / rate_.bytes_per_second() * 1e9));
  return run;
}

// Losses first, of the oldest message; then what was never sent.
std::optional<Run> Sender::next(Time now) {
  if (!messages_.empty() && !waits_) {
    waits_ = true;
    waits_since_ = now;
  }
  waits_ = !messages_.empty();
  expire(now);
  if (!messages_.empty() || credit_ <= sequence_)
    soundings_ = 0;
  if (soundings_ != 0) {
    --soundings_;
    return sent(Kind::probe, next_message_, 0, 1, now);
  }
  if (messages_.empty())
    rate_.on_idle();
  if (now >= may_send_)
    burst_until_ = now + std::min(rate_.shortest_round_trip() / burst_part, burst_most);
  if (messages_.empty() || may_send_ > std::max(now, burst_until_))
    return std::nullopt;
  for (const auto& m : messages_)
    if (m->cancelling && (!m->cancel_sent || now >= m->cancelled_at + rate_.timeout(0))) {
      m->cancel_sent = true;
      m->cancelled_at = now;
      return sent(Kind::cancel, m->number, 0, 1, now);
    }
  const uint64_t room = allowed();
  if (room != 0 && !is_silent(now)) {
    const uint64_t limit = std::min(granted_, messages_.front()->number + open_messages);
    for (const auto& m : messages_)
      if (m->number < limit && !m->cancelling && m->repairs != 0)
        return repair_of(*m, room, now);
    for (const auto& m : messages_)
      if (m->number < limit && !m->cancelling) {
        if (!m->parity_due.empty())
          return parity_of(*m, room, now);
        if (m->fresh_left != 0)
          return data_of(*m, room, now);
      }
    rate_.on_idle();
  }
  if (now < probe_due() || (credit_ + probes_beyond <= sequence_ && probes_in_a_row_ != 0 &&
                            now < last_sent_ + probe_slowest))
    return std::nullopt;
  ++probes_in_a_row_;
  return sent(Kind::probe, messages_.front()->number, 0, 1, now);
}

bool Sender::is_silent(Time now) const noexcept {
  return waits_ && now - std::max(last_heard_, waits_since_) >
                       silent_timeouts * rate_.timeout(options_.alpha);
}

// The first probe follows the last packet at once, so that the receiver knows what it misses.
Time Sender::probe_due() const noexcept {
  if (last_sent_ == Time{0})
    return Time{0};
  const Time trip = rate_.smoothed_round_trip();
  if (trip == Time{0})
    return last_sent_ +
           std::min(probe_slowest, probe_first * (1 << std::min(probes_in_a_row_, 6U)) / 2);
  if (probes_in_a_row_ == 0)
    return last_sent_;
  const uint32_t doublings = probes_in_a_row_ < 16 ? 0 : std::min(probes_in_a_row_ - 16, 10U);
  return last_sent_ +
         std::min(std::max(probe_slowest, trip), std::max(trip / (probes_in_a_row_ == 1 ? 8 : 4),
                                                          Time(std::chrono::microseconds(50))) *
                                                     (1 << doublings));
}

Run Sender::repair_of(Message& m, uint64_t room, Time now) {
  while (m.repair[m.repair_at] == 0)
    ++m.repair_at;
  const uint32_t word = m.repair_at;
  uint64_t packets = m.repair[word];
  Block* block = nullptr;
  if (m.scheme.has_parity()) { // a run stays within its block
    const uint32_t number =
        m.blocks.block_of(word * word_bits + static_cast<uint32_t>(std::countr_zero(packets)));
    block = &m.of_block[number];
    packets &= m.in_block(number, word);
  }
  packets = lowest(packets, room);
  if (block != nullptr && !block->fell_back)
    block->unjudged += static_cast<uint32_t>(count_of(packets));
  m.repair[word] &= ~packets;
  m.repairs -= count_of(packets);
  stats_.repairs += count_of(packets);
  return sent(Kind::data, m.number, word, packets, now);
}

Run Sender::data_of(Message& m, uint64_t room, Time now) {
  while (m.fresh[m.fresh_at] == 0)
    ++m.fresh_at;
  const uint32_t word = m.fresh_at;
  uint64_t packets = m.fresh[word];
  Block* block = nullptr;
  uint32_t number = 0;
  if (m.scheme.has_parity()) { // a run stays within its block
    number = m.blocks.block_of(word * word_bits + static_cast<uint32_t>(std::countr_zero(packets)));
    block = &m.of_block[number];
    packets &= m.in_block(number, word);
  }
  packets = lowest(packets, room);
  m.fresh[word] &= ~packets;
  m.fresh_left -= count_of(packets);
  if (block != nullptr) {
    block->unsent -= static_cast<uint32_t>(count_of(packets));
    block->unjudged += static_cast<uint32_t>(count_of(packets));
    if (block->unsent == 0)
      m.parity_due.push_back(number);
  }
  return sent(Kind::data, m.number, word, packets, now);
}

Run Sender::parity_of(Message& m, uint64_t room, Time now) {
  const uint32_t number = m.parity_due.front();
  Block& block = m.of_block[number];
  const uint32_t columns = m.blocks.columns_of(number);
  const uint32_t shard = block.parity_sent / columns;
  const uint32_t first = m.blocks.parity_packet(number, shard, block.parity_sent % columns);
  const auto in_word =
      std::min<uint64_t>(word_bits - first % word_bits, columns - block.parity_sent % columns);
  const auto count = static_cast<uint32_t>(std::min(in_word, room));
  block.parity_sent += count;
  block.unjudged += count;
  stats_.parity += count;
  if (block.parity_sent == columns * m.scheme.m)
    m.parity_due.pop_front();
  return sent(Kind::parity, m.number, first / word_bits, bits(first % word_bits, count), now);
}

uint64_t Sender::unsent() const noexcept {
  uint64_t packets = 0;
  for (const auto& m : messages_)
    packets += m->fresh_left;
  return packets;
}

Time Sender::wake(Time now) const {
  if (messages_.empty())
    return soundings_ != 0 ? now : Time::max();
  Time at = std::max(last_heard_, waits_ ? waits_since_ : now) + options_.silence;
  const bool silent = is_silent(now);
  bool sends = false;
  const uint64_t limit = std::min(granted_, messages_.front()->number + open_messages);
  for (const auto& m : messages_) {
    if (m->cancelling)
      at = std::min(at, m->cancel_sent ? m->cancelled_at + rate_.timeout(0) : now);
    sends = sends || (m->number < limit && !m->cancelling && m->has_work());
  }
  if (sends && !silent && allowed() != 0)
    return std::max(now, may_send_);
  for (const Note& note : log_)
    if (note.packets != 0) {
      at = std::min(at, note.sent + rate_.timeout(options_.alpha));
      break;
    }
  Time probe = probe_due();
  if (credit_ + probes_beyond <= sequence_ && probes_in_a_row_ != 0)
    probe = std::max(probe, last_sent_ + probe_slowest);
  return std::max(now, std::max(may_send_, std::min(at, probe)));
}

void Sender::end(Message& m, End how) {
  events_.push_back({m.number, how});
  for (Note& note : log_)
    if (note.message == m.number && note.packets != 0) {
      under_way_ -= count_of(note.packets);
      note.packets = 0;
    }
  const uint64_t number = m.number;
  std::erase_if(messages_, [number](const auto& each) { return each->number == number; });
  waits_ = !messages_.empty();
}

std::optional<SendEvent> Sender::take_event() {
  if (events_.empty())
    return std::nullopt;
  const SendEvent event = events_.front();
  events_.pop_front();
  return event;
}

} // namespace adverb::reliability
