// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One side of a pair, with the bytes: buffers of a program, the sender and the receiver between
// them and the wire, and the codes. Packets go out of next_packet() and come in by take_packet();
// whatever carries them may lose, repeat, reorder and delay them. No verbs, no thread, no clock:
// one thread at a time, but for readers of the chunk bitmaps.
#pragma once

#include "reliability/erasure.h"
#include "reliability/receiver.h"
#include "reliability/sender.h"
#include "reliability/wire.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace adverb::reliability {

struct PartyOptions {
  Cut cut;
  RateOptions rate;
  Time silence = std::chrono::seconds(10);
  uint64_t receives = 4096; // packets that the other side may have under way to us
  uint64_t epoch_out = 0;   // of packets to the other side
  uint64_t epoch_in = 0;    // of packets from it; others are dropped
  double alpha = 2;         // of the timeout
};

class Party {
public:
  explicit Party(const PartyOptions& options);
  ~Party();

  // The number of a send, which is that of the receive it meets. The buffer is read until its
  // event. `streaming`: ready() names the bytes that may go.
  uint64_t send(const std::byte* data, uint64_t bytes, const Scheme& scheme, uint32_t immediate,
                bool streaming = false);
  void ready(uint64_t send, uint64_t offset, uint64_t bytes);
  void cancel(uint64_t send) { sender_.cancel(send); }
  // The buffer is written until its event, or until finish() has returned.
  uint64_t receive(std::byte* data, uint64_t capacity, Time deadline = Time{0});
  void finish(uint64_t receive, End how) { receiver_.finish(receive, how); }
  void release(uint64_t receive) { receiver_.release(receive); }

  // Writes the next packet to send, header included, if one may go now; its length, otherwise 0.
  // `out` has room for cut.packet_bytes and a header.
  size_t next_packet(std::span<std::byte> out, Time now);
  // A packet that arrived, header included. Anything else is dropped.
  void take_packet(std::span<const std::byte> packet, Time now);
  // When next_packet() may have something, if nothing arrives until then.
  Time wake(Time now) const;

  std::optional<SendEvent> take_send_event();
  std::optional<ReceiveEvent> take_receive_event();
  Sender& sender() noexcept { return sender_; }
  const Sender& sender() const noexcept { return sender_; }
  Receiver& receiver() noexcept { return receiver_; }
  const Receiver& receiver() const noexcept { return receiver_; }

  // Share of packets, and of reports, that are lost on the way here, by what has arrived so far. A
  // packet that is late looks lost.
  double loss_here() noexcept;

private:
  struct Outgoing;
  struct Incoming;

  // A run on its way to the wire: what all its headers say, and the packets that are left.
  struct Going {
    wire::Header header;
    const Outgoing* message = nullptr; // null: the run has no payload
    uint32_t word = 0;
    uint64_t packets = 0;
  };
  // What the packets of one kind say of their message, checked, and what follows from that.
  struct Known {
    wire::Header header;
    MessageHead head;
    Layout layout;
    Blocks blocks;
    uint32_t packets = 0;         // of data
    Incoming* incoming = nullptr; // once a packet of the message was new
  };

  void start(const Run& run);
  bool know(const wire::Header& header);
  size_t data_packet(std::byte* out);
  void forget_if_over();
  size_t feedback_packet(std::span<std::byte> out, Time now);
  uint32_t write_parity(std::byte* to, const Outgoing& message, uint32_t packet);
  void take_feedback(const wire::Header& header, std::span<const std::byte> payload, Time now);
  void take_data(const wire::Header& header, std::span<const std::byte> payload, Time now);
  void take_parity(const wire::Header& header, std::span<const std::byte> payload, Time now);
  void use_parity(Incoming& message, Kind kind, uint32_t packet, uint32_t block);
  uint64_t parity_of_block(const Scheme& scheme) const noexcept;
  void drop_parity(Incoming& message, uint32_t block);
  void keep_parity(Incoming& message, const MessageHead& head, uint32_t packet,
                   std::span<const std::byte> payload);
  void decode(const Column& column);
  Code& code_of(const Scheme& scheme);
  uint16_t round_trip() const noexcept;

  // What has arrived, of how much that was sent.
  struct Arrivals {
    uint64_t arrived = 0;
    uint64_t sent = 0;
  };

  PartyOptions options_;
  Sender sender_;
  Receiver receiver_;
  std::unordered_map<uint64_t, Outgoing> outgoing_; // open
  std::unordered_map<uint64_t, Incoming> incoming_; // open
  std::map<uint32_t, std::unique_ptr<Code>> codes_; // by parity, k and m
  uint64_t parity_bytes_ = 0;                       // kept, of all messages
  std::vector<std::byte> padded_;                   // a short packet of a column, and zeros
  Going going_;                                     // without packets: there is none
  std::optional<Known> known_;                      // of the packet that arrived last
  uint64_t reports_ = 0;                            // made here
  Arrivals reports_here_;
  Arrivals learnt_; // when loss_here() was asked last
  LossMean loss_here_;
};

} // namespace adverb::reliability
