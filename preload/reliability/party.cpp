// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "reliability/party.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

namespace adverb::reliability {

using wire::Header;

struct Party::Outgoing {
  const std::byte* data = nullptr;
  Layout layout;
  Scheme scheme;
  Blocks blocks;
  uint32_t immediate = 0;
  std::map<uint64_t, uint64_t> ready; // of a streaming send: bytes named so far, from and to
};

struct Party::Incoming {
  std::byte* data = nullptr;
  // Parity of blocks that are not whole, m shards of a chunk each.
  struct Parity {
    std::unique_ptr<std::byte[]> shards;
    uint64_t bytes = 0;
  };
  std::map<uint32_t, Parity> parity;
};

namespace {

// Of blocks that are not whole, in all messages: a bound on what a peer can have us keep.
constexpr uint64_t parity_most = uint64_t{256} << 20;

SenderOptions sender_of(const PartyOptions& options) {
  SenderOptions out;
  out.cut = options.cut;
  out.rate = options.rate;
  out.rate.packet_bytes = options.cut.packet_bytes;
  out.alpha = options.alpha;
  out.silence = options.silence;
  return out;
}

ReceiverOptions receiver_of(const PartyOptions& options) {
  ReceiverOptions out;
  out.cut = options.cut;
  out.silence = options.silence;
  out.receives = options.receives;
  // Reports and probes of the other side meet the same buffers, without credit.
  out.headroom = std::min(std::max<uint64_t>(64, options.receives / 8), options.receives / 2);
  return out;
}

} // namespace

Party::Party(const PartyOptions& options)
    : options_(options), sender_(sender_of(options)), receiver_(receiver_of(options)),
      padded_(options.cut.packet_bytes) {
  assert(options.cut.valid() && options.cut.packet_bytes >= wire::payload_least);
}

Party::~Party() = default;

uint64_t Party::send(const std::byte* data, uint64_t bytes, const Scheme& scheme,
                     uint32_t immediate, bool streaming) {
  Outgoing message;
  message.data = data;
  message.layout = {options_.cut, bytes};
  message.scheme = scheme;
  if (scheme.has_parity())
    message.blocks = {message.layout, scheme.k, scheme.m};
  message.immediate = immediate;
  outgoing_.emplace(sender_.next_message(), std::move(message));
  return sender_.post(bytes, scheme, !streaming || bytes == 0);
}

// A packet may go when all of its bytes have been named.
void Party::ready(uint64_t send, uint64_t offset, uint64_t bytes) {
  const auto found = outgoing_.find(send);
  if (found == outgoing_.end() || bytes == 0)
    return;
  Outgoing& m = found->second;
  assert(offset <= m.layout.bytes && bytes <= m.layout.bytes - offset);
  uint64_t from = offset;
  uint64_t to = offset + bytes;
  auto at = m.ready.upper_bound(from);
  if (at != m.ready.begin() && std::prev(at)->second >= from)
    --at;
  while (at != m.ready.end() && at->first <= to) {
    from = std::min(from, at->first);
    to = std::max(to, at->second);
    at = m.ready.erase(at);
  }
  m.ready.emplace(from, to);
  const Cut& cut = options_.cut;
  const auto packet_of = [&cut](uint64_t byte) {
    return static_cast<uint32_t>(byte / cut.chunk_bytes * cut.columns() +
                                 byte % cut.chunk_bytes / cut.packet_bytes);
  };
  uint32_t first = packet_of(from);
  first += m.layout.offset(first) < from ? 1 : 0;
  const uint32_t end = to == m.layout.bytes ? m.layout.packets() : packet_of(to);
  // Earlier packets of a range that has grown were named before.
  sender_.make_ready(send, std::max(first, packet_of(offset)), end);
}

uint64_t Party::receive(std::byte* data, uint64_t capacity, Time deadline) {
  const uint64_t number = receiver_.post(capacity, deadline);
  incoming_[number].data = data;
  return number;
}

Time Party::wake(Time now) const {
  return going_.packets != 0 ? now : std::min(sender_.wake(now), receiver_.wake(now));
}

std::optional<SendEvent> Party::take_send_event() {
  const auto event = sender_.take_event();
  if (event)
    outgoing_.erase(event->message);
  return event;
}

std::optional<ReceiveEvent> Party::take_receive_event() {
  const auto event = receiver_.take_event();
  if (!event)
    return event;
  Incoming& m = incoming_.at(event->message);
  while (!m.parity.empty())
    drop_parity(m, m.parity.begin()->first);
  if (known_)
    known_->incoming = nullptr;
  incoming_.erase(event->message);
  return event;
}

uint16_t Party::round_trip() const noexcept {
  const auto trip = static_cast<uint64_t>(sender_.rate().smoothed_round_trip().count());
  return static_cast<uint16_t>(
      trip == 0 ? 0 : std::clamp<uint64_t>(trip / wire::round_trip_unit, 1, UINT16_MAX));
}

size_t Party::next_packet(std::span<std::byte> out, Time now) {
  assert(out.size() >= sizeof(Header) + options_.cut.packet_bytes);
  // A report goes before the next run: the other side may wait for it, and it is never many
  // packets.
  if (going_.packets == 0) {
    if (const size_t bytes = feedback_packet(out, now); bytes != 0)
      return bytes;
    const auto run = sender_.next(now);
    if (!run)
      return 0;
    start(*run);
  }
  return data_packet(out.data());
}

size_t Party::feedback_packet(std::span<std::byte> out, Time now) {
  const auto feedback = receiver_.feedback(now, wire::feedback_words(options_.cut.packet_bytes));
  if (!feedback)
    return 0;
  Header header;
  header.epoch = options_.epoch_out;
  header.kind = Kind::feedback;
  header.sequence = ++reports_;
  header.round_trip = round_trip();
  header.length = static_cast<uint16_t>(
      wire::write(*feedback, out.subspan(sizeof header, options_.cut.packet_bytes)));
  memcpy(out.data(), &header, sizeof header);
  return sizeof header + header.length;
}

double Party::loss_here() noexcept {
  const Arrivals now{receiver_.arrived() + reports_here_.arrived,
                     receiver_.highest() + reports_here_.sent};
  // What the other side sent before this one was connected is no loss of the path's.
  if (learnt_.arrived == 0)
    learnt_ = now;
  const uint64_t arrived = now.arrived - learnt_.arrived;
  const uint64_t sent = now.sent - learnt_.sent;
  loss_here_.learn(arrived, sent - std::min(sent, arrived));
  learnt_ = now;
  return loss_here_.share();
}

void Party::start(const Run& run) {
  going_ = {};
  going_.word = run.word;
  going_.packets = run.packets;
  Header& header = going_.header;
  header.epoch = options_.epoch_out;
  header.sequence = run.sequence;
  header.message = run.message;
  header.kind = run.kind;
  header.round_trip = round_trip();
  const auto at = outgoing_.find(run.message);
  if (at == outgoing_.end()) { // a probe that is of no message
    assert(run.kind == Kind::probe);
    return;
  }
  const Outgoing& m = at->second;
  header.bytes = m.layout.bytes;
  header.immediate = m.immediate;
  header.scheme = wire::scheme_byte(m.scheme);
  header.k = m.scheme.k;
  header.m = m.scheme.m;
  if (run.kind == Kind::data || run.kind == Kind::parity)
    going_.message = &m;
}

// The next packet of the run that goes.
size_t Party::data_packet(std::byte* out) {
  Header& header = going_.header;
  if (const Outgoing* const m = going_.message; m != nullptr) {
    header.packet =
        going_.word * word_bits + static_cast<uint32_t>(std::countr_zero(going_.packets));
    std::byte* const payload = out + sizeof header;
    if (header.kind == Kind::data) {
      const Layout::Place place = m->layout.place(header.packet);
      if (place.length != 0)
        memcpy(payload, m->data + place.offset, place.length);
      header.length = static_cast<uint16_t>(place.length);
    } else {
      header.length = static_cast<uint16_t>(write_parity(payload, *m, header.packet));
    }
  }
  memcpy(out, &header, sizeof header);
  going_.packets &= going_.packets - 1;
  ++header.sequence;
  return sizeof header + header.length;
}

// A message may end while a run of it goes, and its buffer may be gone. The sequence numbers that
// are left are spent on packets that ask nothing of it.
void Party::forget_if_over() {
  if (going_.packets == 0 || going_.message == nullptr || !sender_.is_over(going_.header.message))
    return;
  going_.message = nullptr;
  Header probe;
  probe.epoch = going_.header.epoch;
  probe.sequence = going_.header.sequence;
  probe.message = going_.header.message;
  probe.kind = Kind::probe;
  probe.round_trip = going_.header.round_trip;
  going_.header = probe;
}

// One packet of parity, made when it is sent from the packets of its column. The last packet of a
// message may be shorter than its column: zeros follow it for the code, and are never sent.
uint32_t Party::write_parity(std::byte* to, const Outgoing& m, uint32_t packet) {
  const uint32_t block = m.blocks.block_of_parity(packet);
  const uint32_t column = m.blocks.column_of(packet);
  const uint32_t bytes = m.blocks.parity_length(packet);
  std::array<const std::byte*, 256> data{};
  for (uint32_t j = 0; j < m.blocks.chunks_with(block, column); ++j) {
    const uint32_t p = (block * m.blocks.k + j) * m.layout.columns() + column;
    const uint32_t length = m.layout.length(p);
    data[j] = m.data + m.layout.offset(p);
    if (length == bytes)
      continue;
    std::fill(padded_.begin(), padded_.end(), std::byte{0});
    memcpy(padded_.data(), data[j], length);
    data[j] = padded_.data();
  }
  code_of(m.scheme).encode_one(m.blocks.shard_of_parity(packet), std::span(data).first(m.blocks.k),
                               to, bytes);
  return bytes;
}

Code& Party::code_of(const Scheme& scheme) {
  const uint32_t key =
      static_cast<uint32_t>(scheme.parity) << 16 | uint32_t{scheme.k} << 8 | scheme.m;
  auto& code = codes_[key];
  if (code == nullptr)
    code = std::make_unique<Code>(
        CodeShape{scheme.parity == Parity::xor_parity ? CodeKind::xor_parity : CodeKind::mds,
                  scheme.k, scheme.m});
  return *code;
}

void Party::take_packet(std::span<const std::byte> packet, Time now) {
  Header header;
  if (packet.size() < sizeof header)
    return;
  memcpy(&header, packet.data(), sizeof header);
  const auto payload = packet.subspan(sizeof header);
  if (header.length != payload.size())
    return;
  if (!known_ || !known_->header.is_of_the_same(header)) [[unlikely]] {
    if (header.epoch != options_.epoch_in)
      return;
    if (header.kind == Kind::feedback) {
      take_feedback(header, payload, now);
      return;
    }
    if (!know(header))
      return;
  }
  if (header.round_trip != 0)
    receiver_.round_trip(Time(static_cast<int64_t>(header.round_trip * wire::round_trip_unit)));
  if (header.kind == Kind::data) [[likely]]
    take_data(header, payload, now);
  else if (header.kind == Kind::parity)
    take_parity(header, payload, now);
  else
    receiver_.arrive(known_->head, header.kind, 0, 1, header.sequence, now);
}

void Party::take_feedback(const Header& header, std::span<const std::byte> payload, Time now) {
  const auto feedback = wire::read(payload);
  if (!feedback)
    return;
  ++reports_here_.arrived;
  reports_here_.sent = std::max(reports_here_.sent, header.sequence);
  sender_.hear(*feedback, now);
  forget_if_over();
}

// Whether what a packet says of its message makes sense; if so, the packet's kind is one of those
// that say something of a message.
bool Party::know(const Header& header) {
  if (header.kind < Kind::data || header.kind > Kind::cancel || header.kind == Kind::feedback)
    return false;
  const auto scheme = wire::scheme_of(header.scheme, header.k, header.m);
  if (!scheme || !Layout::fits(options_.cut, header.bytes))
    return false;
  const Layout layout{options_.cut, header.bytes};
  known_ = {header,           {header.message, header.bytes, *scheme, header.immediate},
            layout,           {layout, std::max<uint32_t>(scheme->k, 1), scheme->m},
            layout.packets(), nullptr};
  return true;
}

// A packet that does not fit its message is dropped before it counts. Otherwise its bytes are
// copied once, to their place.
void Party::take_data(const Header& header, std::span<const std::byte> payload, Time now) {
  const Layout& layout = known_->layout;
  const uint32_t packet = header.packet;
  if (packet >= known_->packets)
    return;
  const Layout::Place place = layout.place(packet);
  if (place.length != header.length)
    return;
  const uint32_t word = packet / word_bits;
  const uint64_t bit = bits(packet % word_bits, 1);
  if (receiver_.arrive(known_->head, Kind::data, word, bit, header.sequence, now) == 0)
    return;
  if (known_->incoming == nullptr)
    known_->incoming = &incoming_.at(header.message);
  Incoming& m = *known_->incoming;
  if (!payload.empty())
    memcpy(m.data + place.offset, payload.data(), payload.size());
  receiver_.placed(header.message, word, bit);
  if (known_->head.scheme.has_parity())
    use_parity(m, Kind::data, packet, known_->blocks.block_of(packet));
}

void Party::take_parity(const Header& header, std::span<const std::byte> payload, Time now) {
  const Blocks& blocks = known_->blocks;
  const Scheme& scheme = known_->head.scheme;
  const uint32_t packet = header.packet;
  if (!scheme.has_parity() || packet >= blocks.parity_packets())
    return;
  const uint32_t block = blocks.block_of_parity(packet);
  if (blocks.column_of(packet) >= blocks.columns_of(block) ||
      blocks.parity_length(packet) != header.length)
    return;
  // Without room it is as good as lost; what it would have completed is sent again.
  const auto found = incoming_.find(header.message);
  if (found != incoming_.end() && !found->second.parity.contains(block) &&
      parity_bytes_ + parity_of_block(scheme) > parity_most)
    return;
  const uint32_t word = packet / word_bits;
  const uint64_t bit = bits(packet % word_bits, 1);
  if (receiver_.arrive(known_->head, Kind::parity, word, bit, header.sequence, now) == 0)
    return;
  Incoming& m = incoming_.at(header.message);
  keep_parity(m, known_->head, packet, payload);
  use_parity(m, Kind::parity, packet, block);
}

// A packet of a code is there: decodes the columns that it completes.
void Party::use_parity(Incoming& m, Kind kind, uint32_t packet, uint32_t block) {
  const uint64_t message = known_->head.message;
  receiver_.check(message, kind, packet / word_bits, bits(packet % word_bits, 1));
  while (const auto column = receiver_.take_decodable())
    decode(*column);
  if (!m.parity.empty() && !receiver_.wants_parity(message, block))
    drop_parity(m, block);
}

uint64_t Party::parity_of_block(const Scheme& scheme) const noexcept {
  return uint64_t{scheme.m} * options_.cut.columns() * options_.cut.packet_bytes;
}

void Party::drop_parity(Incoming& m, uint32_t block) {
  if (const auto at = m.parity.find(block); at != m.parity.end()) {
    parity_bytes_ -= at->second.bytes;
    m.parity.erase(at);
  }
}

void Party::keep_parity(Incoming& m, const MessageHead& head, uint32_t packet,
                        std::span<const std::byte> payload) {
  const Blocks blocks{{options_.cut, head.bytes}, head.scheme.k, head.scheme.m};
  auto& kept = m.parity[blocks.block_of_parity(packet)];
  const uint32_t packets = blocks.m * options_.cut.columns();
  if (kept.shards == nullptr) {
    kept.bytes = parity_of_block(head.scheme);
    kept.shards.reset(new std::byte[kept.bytes]);
    parity_bytes_ += kept.bytes;
  }
  memcpy(&kept.shards[size_t{packet % packets} * options_.cut.packet_bytes], payload.data(),
         payload.size());
}

// Missing packets of a column are written to their place, that of the message's last packet by way
// of a padded copy.
void Party::decode(const Column& column) {
  Incoming& m = incoming_.at(column.message);
  const MessageHead head = *receiver_.head(column.message);
  const Layout layout{options_.cut, head.bytes};
  const Blocks blocks{layout, head.scheme.k, head.scheme.m};
  const uint32_t first = column.block * blocks.k;
  const uint32_t bytes = layout.length(first * layout.columns() + column.column);
  std::array<std::byte*, 256> shards{};
  std::bitset<256> wanted;
  std::byte* short_place = nullptr; // of the padded packet, if it is missing
  uint32_t short_length = 0;
  for (uint32_t j = 0; j < blocks.chunks_with(column.block, column.column); ++j) {
    const uint32_t packet = (first + j) * layout.columns() + column.column;
    const uint32_t length = layout.length(packet);
    std::byte* const place = m.data + layout.offset(packet);
    wanted[j] = !column.have[j];
    shards[j] = place;
    if (length == bytes)
      continue;
    std::fill(padded_.begin(), padded_.end(), std::byte{0});
    shards[j] = padded_.data();
    if (column.have[j]) {
      memcpy(padded_.data(), place, length);
    } else {
      short_place = place;
      short_length = length;
    }
  }
  std::byte* const kept = m.parity.at(column.block).shards.get();
  for (uint32_t i = 0; i < blocks.m; ++i)
    shards[blocks.k + i] =
        kept + (size_t{i} * layout.columns() + column.column) * options_.cut.packet_bytes;
  [[maybe_unused]] const bool done =
      code_of(head.scheme)
          .decode(std::span(shards).first(blocks.k + blocks.m), column.have, bytes, wanted);
  assert(done); // the receiver asks for what the code can give
  if (short_place != nullptr)
    memcpy(short_place, padded_.data(), short_length);
  receiver_.decoded(column);
}

} // namespace adverb::reliability
