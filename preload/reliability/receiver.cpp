// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "reliability/receiver.h"
#include "reliability/receiver_parts.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace adverb::reliability {
namespace {

constexpr size_t ended_kept = 1024; // of the latest messages; a sender has fewer open (sender.h)
constexpr uint32_t end_said = 3;    // times, unasked

// Packets of a word chunk by chunk, since most packets come in runs: calls
// each(chunk, first, columns), where bit i of `columns` is the packet of column first + i.
template <typename Each>
void for_each_chunk(uint32_t word, uint64_t packets, uint32_t columns, Each&& each) {
  if ((packets & (packets - 1)) == 0 && packets != 0) [[likely]] {
    const uint32_t packet = word * word_bits + static_cast<uint32_t>(std::countr_zero(packets));
    const uint32_t chunk = packet / columns;
    each(chunk, packet - chunk * columns, uint64_t{1});
    return;
  }
  while (packets != 0) {
    const auto bit = static_cast<uint32_t>(std::countr_zero(packets));
    const uint32_t packet = word * word_bits + bit;
    const uint32_t chunk = packet / columns;
    const uint32_t first = packet - chunk * columns;
    const uint32_t width = std::min(columns - first, word_bits - bit);
    const uint64_t mask = bits(0, width);
    each(chunk, first, packets >> bit & mask);
    packets &= ~(mask << bit);
  }
}

// Adds to the counts of these columns, the first of which is `counts`.
void add_to_each(uint8_t* counts, uint64_t columns, uint8_t number) noexcept {
  constexpr uint32_t lanes = 16;
  for (; (columns & bits(0, lanes)) == bits(0, lanes); columns >>= lanes, counts += lanes)
    for (uint32_t i = 0; i < lanes; ++i)
      counts[i] = static_cast<uint8_t>(counts[i] + number);
  for (; columns != 0; columns &= columns - 1) {
    uint8_t& count = counts[std::countr_zero(columns)];
    count = static_cast<uint8_t>(count + number);
  }
}

} // namespace

static_assert(ended_kept > open_messages);

Receiver::Receiver(const ReceiverOptions& options) : options_(options) {
  assert(options.cut.valid() && options.receives > options.headroom);
}

Receiver::~Receiver() = default;

uint64_t Receiver::post(uint64_t capacity, Time deadline) {
  messages_.push_back(std::make_unique<Message>(next_message_, capacity, deadline, options_.cut));
  ++open_;
  urgent_ = true; // the sender may wait for it
  return next_message_++;
}

auto Receiver::find(uint64_t message) const noexcept -> Message* {
  if (found_ != nullptr && found_->number == message) [[likely]]
    return found_;
  if (message < first_message_ || message >= next_message_)
    return nullptr;
  return found_ = messages_[message - first_message_].get();
}

const Atomic<uint64_t>* Receiver::bitmap(uint64_t message) const noexcept {
  const Message* const m = find(message);
  return m == nullptr ? nullptr : m->chunks[0].word;
}

const std::vector<uint64_t>* Receiver::packets(uint64_t message) const noexcept {
  const Message* const m = find(message);
  return m == nullptr || !m->begun ? nullptr : &m->packets;
}

std::optional<MessageHead> Receiver::head(uint64_t message) const noexcept {
  const Message* const m = find(message);
  return m == nullptr || !m->begun ? std::nullopt : std::optional(m->head);
}

Receiver::Counts Receiver::counts(uint64_t message) const noexcept {
  const Message* const m = find(message);
  if (m == nullptr)
    return {};
  if (m->total == 0)
    return {Layout{options_.cut, m->capacity}.chunks(), 0, 0, 0, 0};
  Counts out{m->layout.chunks(), m->layout.chunks() - m->chunks_left, m->total, 0, m->placed_bytes};
  for (const uint64_t word : m->packets)
    out.packets_set += static_cast<uint32_t>(std::popcount(word));
  return out;
}

void Receiver::finish(uint64_t message, End how) {
  Message* const m = find(message);
  if (m != nullptr && m->end == End::open)
    end(*m, how);
}

void Receiver::release(uint64_t message) {
  if (Message* const m = find(message); m == nullptr || m->end == End::open)
    return;
  found_ = nullptr;
  messages_[message - first_message_].reset();
  for (; !messages_.empty() && messages_.front() == nullptr; ++first_message_)
    messages_.pop_front();
}

void Receiver::end(Message& m, End how) {
  m.end = how;
  --open_;
  // What is kept of the message serves readers of its bitmaps alone.
  m.parity_packets = {};
  m.missing = {};
  m.parity = {};
  std::erase_if(decodable_, [&m](const Column& column) { return column.message == m.number; });
  events_.push_back({m.number, how, m.begun ? m.head.bytes : 0, m.placed_bytes, m.head.immediate});
  ended_.push_back({m.number, how, end_said});
  if (ended_.size() > ended_kept)
    ended_.pop_front();
  urgent_ = true;
}

// The first packet of a message says how long it is and how it is repaired.
bool Receiver::begin(Message& m, const MessageHead& head) {
  if (!head.scheme.valid() || !Layout::fits(options_.cut, head.bytes))
    return false;
  m.begun = true;
  m.head = head;
  m.layout = {options_.cut, head.bytes};
  m.columns = m.layout.columns();
  if (head.bytes > m.capacity)
    return true; // ends as truncated
  m.total = m.layout.packets();
  m.packets.resize(words_of(m.total));
  m.chunks_left = m.layout.chunks();
  m.lacking.resize(m.chunks_left);
  for (uint32_t c = 0; c < m.chunks_left; ++c)
    m.lacking[c] = m.layout.columns_of(c);
  if (!head.scheme.has_parity())
    return true;
  m.blocks = {m.layout, head.scheme.k, head.scheme.m};
  const uint32_t columns = m.layout.columns();
  m.missing.resize(size_t{m.blocks.count()} * columns);
  m.parity.resize(m.missing.size());
  m.parity_packets.resize(words_of(m.blocks.parity_packets()));
  for (uint32_t b = 0; b < m.blocks.count(); ++b)
    for (uint32_t c = 0; c < m.blocks.columns_of(b); ++c)
      m.missing[size_t{b} * columns + c] = static_cast<uint8_t>(m.blocks.chunks_with(b, c));
  return true;
}

uint64_t Receiver::arrive(const MessageHead& head, Kind kind, uint32_t word, uint64_t packets,
                          uint64_t sequence, Time now) {
  heard_at_ = now;
  unsaid_ = true;
  idle_told_ = 0;
  const uint64_t count = count_of(packets);
  arrived_ += count;
  if (sequence >= highest_) {
    highest_ = sequence + 1;
    highest_at_ = now;
  }
  if (arrived_ - arrived_told_ >= (options_.receives - options_.headroom) / 4)
    urgent_ = true; // the sender may be short of credit
  if (kind != Kind::data && kind != Kind::parity) {
    arrive_notice(head.message, kind);
    return 0;
  }
  stats_.packets += count;
  if (head.message >= next_message_) {
    stats_.early += count;
    return 0;
  }
  Message* const m = find(head.message);
  if (m == nullptr || m->end != End::open) {
    stats_.late += count;
    say_end_again(head.message);
    return 0;
  }
  if (!(m->begun ? m->says(head) : begin(*m, head))) {
    stats_.refused += count;
    return 0;
  }
  if (m->total == 0) {
    end(*m, End::truncated);
    return 0;
  }
  return kind == Kind::data ? arrive_data(*m, word, packets) : arrive_parity(*m, word, packets);
}

// A probe asks how things stand; a cancellation asks to end a message.
void Receiver::arrive_notice(uint64_t message, Kind kind) {
  urgent_ = true;
  if (message >= next_message_)
    return;
  if (Message* const m = find(message); m != nullptr && m->end == End::open) {
    if (kind == Kind::cancel)
      end(*m, End::cancelled);
    return;
  }
  say_end_again(message);
}

void Receiver::say_end_again(uint64_t message) noexcept {
  for (Ended& each : ended_)
    if (each.message == message && each.to_say == 0) {
      each.to_say = 1;
      urgent_ = true;
    }
}

uint64_t Receiver::arrive_data(Message& m, uint32_t word, uint64_t packets) {
  if (word >= m.packets.size() || (packets & ~m.whole(word)) != 0) {
    stats_.refused += count_of(packets);
    return 0;
  }
  const uint64_t fresh = packets & ~m.packets[word];
  if (fresh != packets) [[unlikely]]
    stats_.duplicates += count_of(packets ^ fresh);
  m.packets[word] |= fresh;
  m.seen = std::max(m.seen, word + 1);
  if (!m.missing.empty())
    for_each_chunk(word, fresh, m.columns, [&m](uint32_t chunk, uint32_t first, uint64_t columns) {
      uint8_t* const missing = &m.missing[size_t{chunk / m.blocks.k} * m.columns + first];
      add_to_each(missing, columns, uint8_t(-1));
    });
  return fresh;
}

uint64_t Receiver::arrive_parity(Message& m, uint32_t word, uint64_t packets) {
  if (m.parity_packets.empty() || word >= m.parity_packets.size() ||
      (packets & ~bits(0, std::min(word_bits, m.blocks.parity_packets() - word * word_bits))) !=
          0) {
    stats_.refused += count_of(packets);
    return 0;
  }
  uint64_t fresh = packets & ~m.parity_packets[word];
  stats_.duplicates += count_of(packets ^ fresh);
  m.parity_packets[word] |= fresh;
  uint64_t useless = 0; // there, but
  for_each_chunk(word, fresh, m.columns, [&](uint32_t shard, uint32_t first, uint64_t columns) {
    const uint32_t block = shard / m.blocks.m;
    add_to_each(&m.parity[size_t{block} * m.columns + first], columns, uint8_t{1});
    if (!wants_parity(m, block))
      useless |= columns << (shard * m.columns + first) % word_bits;
  });
  fresh &= ~useless;
  return fresh;
}

bool Receiver::wants_parity(uint64_t message, uint32_t block) const noexcept {
  const Message* const m = find(message);
  if (m == nullptr || m->missing.empty() || block >= m->blocks.count())
    return false;
  return wants_parity(*m, block);
}

bool Receiver::wants_parity(const Message& m, uint32_t block) noexcept {
  const auto* const missing = &m.missing[size_t{block} * m.columns];
  return std::any_of(missing, missing + m.columns, [](uint8_t n) { return n != 0; });
}

void Receiver::placed(uint64_t message, uint32_t word, uint64_t packets) {
  Message* const m = find(message);
  if (m == nullptr || m->end != End::open)
    return;
  for_each_chunk(word, packets, m->columns, [m](uint32_t chunk, uint32_t, uint64_t columns) {
    place(*m, chunk, static_cast<uint32_t>(count_of(columns)));
  });
  while (m->base < m->packets.size() && m->packets[m->base] == m->whole(m->base))
    ++m->base;
  if (m->chunks_left == 0)
    end(*m, End::complete);
}

// The release pairs with the acquire of a reader: it sees the bytes of a chunk whose bit it sees.
void Receiver::place(Message& m, uint32_t chunk, uint32_t packets) noexcept {
  m.lacking[chunk] -= packets;
  if (m.lacking[chunk] != 0)
    return;
  --m.chunks_left;
  m.placed_bytes += m.layout.chunk_length(chunk);
  m.chunk_word(chunk).fetch_or(bits(chunk % word_bits, 1), std::memory_order_release);
}

// Called with packets that are placed: whether parity completes their columns.
void Receiver::check(uint64_t message, Kind kind, uint32_t word, uint64_t packets) {
  Message* const m = find(message);
  if (m == nullptr || m->missing.empty())
    return;
  const uint32_t shards = kind == Kind::data ? m->blocks.k : m->blocks.m;
  for_each_chunk(word, packets, m->columns, [&](uint32_t chunk, uint32_t first, uint64_t columns) {
    const uint32_t block = chunk / shards;
    const size_t at = size_t{block} * m->columns + first;
    for (; columns != 0; columns &= columns - 1) {
      const auto i = static_cast<uint32_t>(std::countr_zero(columns));
      if (m->missing[at + i] != 0 && m->missing[at + i] <= m->parity[at + i])
        check(*m, block, first + i);
    }
  });
}

void Receiver::check(Message& m, uint32_t block, uint32_t column) {
  Column out{m.number, block, column, {}};
  const uint32_t chunks = m.blocks.chunks_with(block, column);
  const uint32_t first = block * m.blocks.k;
  for (uint32_t j = 0; j < m.blocks.k; ++j) {
    const uint32_t packet = (first + j) * m.layout.columns() + column;
    out.have[j] = j >= chunks || (m.packets[packet / word_bits] & bits(packet % word_bits, 1)) != 0;
  }
  std::bitset<256> lost_of; // XOR: groups that lack a data packet
  for (uint32_t i = 0; i < m.blocks.m; ++i) {
    const uint32_t packet = m.blocks.parity_packet(block, i, column);
    out.have[m.blocks.k + i] =
        (m.parity_packets[packet / word_bits] & bits(packet % word_bits, 1)) != 0;
  }
  if (m.head.scheme.parity == Parity::xor_parity)
    for (uint32_t j = 0; j < chunks; ++j) {
      if (out.have[j])
        continue;
      const uint32_t group = j % m.blocks.m;
      if (lost_of[group] || !out.have[m.blocks.k + group])
        return;
      lost_of[group] = true;
    }
  m.missing[size_t{block} * m.columns + column] = 0;
  decodable_.push_back(out);
}

std::optional<Column> Receiver::take_decodable() {
  if (decodable_.empty())
    return std::nullopt;
  const Column column = decodable_.front();
  decodable_.pop_front();
  return column;
}

void Receiver::decoded(const Column& column) {
  Message* const m = find(column.message);
  if (m == nullptr || m->end != End::open)
    return;
  for (uint32_t j = 0; j < m->blocks.chunks_with(column.block, column.column); ++j) {
    if (column.have[j])
      continue;
    const uint32_t packet = (column.block * m->blocks.k + j) * m->layout.columns() + column.column;
    const uint64_t bit = bits(packet % word_bits, 1);
    assert((m->packets[packet / word_bits] & bit) == 0);
    m->packets[packet / word_bits] |= bit;
    m->seen = std::max(m->seen, packet / word_bits + 1);
    ++stats_.decoded;
    placed(m->number, packet / word_bits, bit);
    if (m->end != End::open)
      return;
  }
}

std::optional<ReceiveEvent> Receiver::take_event() {
  if (events_.empty())
    return std::nullopt;
  const ReceiveEvent event = events_.front();
  events_.pop_front();
  return event;
}

} // namespace adverb::reliability
