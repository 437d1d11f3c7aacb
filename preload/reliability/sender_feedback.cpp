// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the sender makes of feedback, and of its absence.
#include "reliability/sender.h"
#include "reliability/sender_parts.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace adverb::reliability {
namespace {

constexpr uint64_t spurious = 64; // one duplicate in so many packets: packets change their order

// Whether a section says of all packets of words first to last whether they are final.
bool covers(const Section& section, uint32_t first, uint32_t last) noexcept {
  const auto end = section.first + static_cast<uint32_t>(section.packets.size());
  return (first >= section.first || section.base / word_bits >= section.first) &&
         (last < end || section.rest_missing);
}

} // namespace

void Sender::hear(const Feedback& feedback, Time now) {
  if (feedback.highest > sequence_)
    return; // names packets that were never sent: not from our receiver
  last_heard_ = std::max(last_heard_, now);
  credit_ = std::max(credit_, feedback.credit);
  granted_ = std::max(granted_, feedback.granted);
  learn(feedback, now);
  for (const Section& section : feedback.sections)
    learn(section);
  if (feedback.highest >= highest_)
    judge(feedback);
  forget_judged();
}

// Round trip, losses, order.
void Sender::learn(const Feedback& feedback, Time now) {
  if (feedback.highest <= highest_)
    return;
  const auto after =
      std::upper_bound(log_.begin(), log_.end(), feedback.highest - 1,
                       [](uint64_t n, const Note& note) { return n < note.sequence; });
  Time trip{0};
  if (after != log_.begin()) {
    highest_sent_ = std::max(highest_sent_, std::prev(after)->sent);
    const Time since = now - std::prev(after)->sent;
    if (feedback.held_for < static_cast<uint64_t>(std::max<int64_t>(since.count(), 0)))
      trip = since - Time(static_cast<int64_t>(feedback.held_for));
  }
  const uint64_t sent = feedback.highest - highest_;
  // Late ones of before included, and no more than could have come.
  const uint64_t arrived =
      std::min(feedback.arrived - std::min(arrived_, feedback.arrived), 2 * sent + word_bits);
  const uint64_t again = feedback.duplicates - std::min(duplicates_, feedback.duplicates);
  if (again * spurious > arrived)
    reordering_ = std::min(rate_.smoothed_round_trip() / 2,
                           std::max(2 * reordering_, rate_.smoothed_round_trip() / 32));
  const uint64_t lost = sent - std::min(arrived, sent);
  const uint64_t starved = feedback.starved - std::min(starved_, feedback.starved);
  if (messages_.empty() && highest_ >= payload_end_)
    rate_.on_soundings(now, trip, arrived, lost, starved);
  else
    rate_.on_feedback(now, trip, arrived, lost, starved);
  highest_ = feedback.highest;
  arrived_ = std::max(arrived_, feedback.arrived);
  duplicates_ = std::max(duplicates_, feedback.duplicates);
  starved_ = std::max(starved_, feedback.starved);
}

void Sender::learn(const Section& section) {
  Message* const m = find(section.message);
  if (m == nullptr)
    return;
  if (section.end != End::open) {
    end(*m, section.end);
    return;
  }
  bool some_spared = false;
  const auto take = [m, &some_spared](uint32_t word, uint64_t packets) {
    m->final_[word] |= packets;
    if (m->scheme.unit == Unit::chunk)
      return; // a chunk goes whole
    const uint64_t spared = m->repair[word] & packets;
    m->repair[word] &= ~packets;
    m->repairs -= count_of(spared);
    some_spared |= spared != 0;
  };
  const uint32_t base = std::min(section.base, m->total);
  for (; m->final_words < base / word_bits; ++m->final_words)
    take(m->final_words, ~uint64_t{0});
  for (uint32_t i = 0; i < section.packets.size() && section.first + i < m->final_.size(); ++i) {
    const uint32_t word = section.first + i;
    take(word, section.packets[i] & bits(0, std::min(word_bits, m->total - word * word_bits)));
  }
  // What is spared will not be judged, and a block may have waited for that.
  for (uint32_t b = 0; some_spared && b < m->of_block.size(); ++b)
    if (const Block& block = m->of_block[b];
        !block.fell_back && block.unjudged == 0 && block.unsent != 0)
      repeat_stalled(*m, b);
}

// Of what was sent before the latest packet that arrived, what is not there is lost.
void Sender::judge(const Feedback& feedback) {
  for (Note& note : log_) {
    if (note.sequence >= feedback.highest)
      break;
    if (note.packets == 0)
      continue;
    Message* const m = find(note.message);
    assert(m != nullptr); // end() clears the notes of a message
    if (note.kind == Kind::data) {
      const uint64_t there = note.packets & m->final_[note.word];
      if (there != 0)
        settle(*m, note, there);
    }
    if (note.packets == 0 || m->scheme.detection == Detection::timeout ||
        note.sent + reordering_ > highest_sent_)
      continue;
    const auto section =
        std::find_if(feedback.sections.begin(), feedback.sections.end(), [&](const Section& s) {
          if (s.message != note.message)
            return false;
          if (!m->scheme.has_parity())
            return covers(s, note.word, note.word);
          const uint32_t block =
              note.kind == Kind::data
                  ? m->blocks.block_of(note.word * word_bits +
                                       static_cast<uint32_t>(std::countr_zero(note.packets)))
                  : m->blocks.block_of_parity(
                        note.word * word_bits +
                        static_cast<uint32_t>(std::countr_zero(note.packets)));
          return covers(s, m->blocks.first_packet(block) / word_bits,
                        (m->blocks.end_packet(block) - 1) / word_bits);
        });
    if (section != feedback.sections.end())
      lose(*m, note);
  }
}

void Sender::expire(Time now) {
  if (waits_ && now - std::max(last_heard_, waits_since_) >= options_.silence) {
    while (!messages_.empty())
      end(*messages_.front(), End::silent);
    forget_judged();
    return;
  }
  const Time timeout = rate_.timeout(options_.alpha);
  for (Note& note : log_) {
    if (note.sent + timeout > now)
      break;
    if (note.packets == 0)
      continue;
    stats_.timeouts += count_of(note.packets);
    Message* const m = find(note.message);
    assert(m != nullptr);
    lose(*m, note);
  }
  forget_judged();
}

// These packets of a run are final or lost.
void Sender::settle(Message& m, Note& note, uint64_t packets) {
  const auto count = static_cast<uint32_t>(count_of(packets));
  const auto first = note.word * word_bits + static_cast<uint32_t>(std::countr_zero(note.packets));
  note.packets &= ~packets;
  under_way_ -= count;
  if (!m.scheme.has_parity())
    return;
  const uint32_t number =
      note.kind == Kind::data ? m.blocks.block_of(first) : m.blocks.block_of_parity(first);
  Block& block = m.of_block[number];
  if (block.fell_back)
    return;
  block.unjudged -= count;
  if (block.unjudged != 0)
    return;
  if (block.unsent != 0)
    repeat_stalled(m, number);
  else if (block.parity_sent == m.blocks.columns_of(number) * m.scheme.m)
    fall_back(m, number);
}

void Sender::lose(Message& m, Note& note) {
  const uint64_t packets = note.packets;
  if (note.kind == Kind::data) // of parity nobody says whether it arrived
    stats_.lost += count_of(packets);
  const auto first = note.word * word_bits + static_cast<uint32_t>(std::countr_zero(packets));
  const bool by_code = m.scheme.has_parity() && (note.kind == Kind::parity ||
                                                 !m.of_block[m.blocks.block_of(first)].fell_back);
  settle(m, note, packets);
  if (!by_code)
    again(m, packets, note.word, note.sent);
}

// The parity of a block was not enough: what is missing is sent again, as without a code.
void Sender::fall_back(Message& m, uint32_t number) {
  m.of_block[number].fell_back = true;
  repeat_missing(m, number);
}

// Of a streaming send the program has not named the rest of a block yet, and may never do so. Its
// parity goes when all of it has, so losses do not wait for that.
void Sender::repeat_stalled(Message& m, uint32_t number) {
  const uint32_t end = m.blocks.end_packet(number);
  for (uint32_t word = m.blocks.first_packet(number) / word_bits; word * word_bits < end; ++word)
    if (((m.fresh[word] | m.repair[word]) & m.in_block(number, word)) != 0)
      return; // this comes again when they have gone
  repeat_missing(m, number);
}

// What has been sent of a block's data and is not final.
void Sender::repeat_missing(Message& m, uint32_t number) {
  const uint32_t end = m.blocks.end_packet(number);
  for (uint32_t word = m.blocks.first_packet(number) / word_bits; word * word_bits < end; ++word) {
    const uint64_t sent =
        m.in_block(number, word) & ~m.fresh[word] & (m.streaming ? m.ready[word] : ~uint64_t{0});
    again(m, sent & ~m.final_[word], word, Time::max());
  }
}

// `sent`: when the lost packets were. A chunk that was taken to be sent again since is not twice.
void Sender::again(Message& m, uint64_t packets, uint32_t word, Time sent) {
  if (m.scheme.unit == Unit::packet) {
    m.again(packets & ~m.final_[word], word);
    return;
  }
  for (; packets != 0; packets &= packets - 1) {
    const uint32_t packet = word * word_bits + static_cast<uint32_t>(std::countr_zero(packets));
    const uint32_t chunk = m.layout.chunk_of(packet);
    if (sent < m.again_at[chunk])
      continue;
    m.again_at[chunk] = last_sent_ + Time{1};
    const uint32_t begin = chunk * m.layout.columns();
    for (uint32_t p = begin; p < begin + m.layout.columns_of(chunk); ++p)
      m.again_whole(p);
  }
}

// When a probe was sent is of use until it is answered.
void Sender::forget_judged() {
  while (!log_.empty() && log_.front().packets == 0 &&
         (log_.front().kind != Kind::probe || log_.front().sequence < highest_))
    log_.pop_front();
}

} // namespace adverb::reliability
