// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The receiving half of a pair of endpoints: which packet is new, which chunk is whole, which
// column of a block can be decoded, which message has ended, and what the sender is told of it. It
// knows no bytes, no verbs, no thread and no clock.
//
// How a packet goes: arrive() says which packets of a run are new. The caller copies their bytes to
// their place and calls placed(), which sets the bits of chunks that are whole. Where parity makes
// packets that are missing known, take_decodable() names them, and the caller calls placed() for
// those, too, when it has written them. One thread at a time; readers of the chunk bitmap may be
// any.
#pragma once

#include "reliability/feedback.h"
#include "reliability/layout.h"
#include "reliability/rate.h"
#include "reliability/scheme.h"
#include "world/sync.h"

#include <bitset>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace adverb::reliability {

// A column of a block that parity completes: `have` says which data and parity shards are there.
struct Column {
  uint64_t message = 0;
  uint32_t block = 0;
  uint32_t column = 0;
  std::bitset<256> have;
};

struct ReceiveEvent {
  uint64_t message = 0;
  End end = End::open;
  uint64_t bytes = 0;  // of the message, as its sender says; 0 if no packet of it arrived
  uint64_t placed = 0; // of its bytes, those of chunks whose bit is set
  uint32_t immediate = 0;
};

struct ReceiverOptions {
  Cut cut;
  Time silence = std::chrono::seconds(10); // of the sender ends a message that has begun
  uint64_t receives = 256;                 // receive buffers of the queue pair
  uint64_t headroom = 64; // of them not given as credit: probes, the other's feedback
};

struct ReceiverStats {
  uint64_t packets = 0;    // that arrived, probes left out
  uint64_t duplicates = 0; // of them there already
  uint64_t late = 0;       // of them of messages that are over
  uint64_t early = 0;      // of them of messages without a receive
  uint64_t starved = 0;    // that may have met an empty receive queue
  uint64_t refused = 0;    // of them that contradict their message
  uint64_t decoded = 0;    // packets made from parity
};

struct ReceiverMessage; // receiver_parts.h

class Receiver {
public:
  explicit Receiver(const ReceiverOptions& options);
  ~Receiver();

  // A receive for at most so many bytes; its number. A message that has not ended at `deadline`
  // (0: none) ends as partial.
  uint64_t post(uint64_t capacity, Time deadline = Time{0});
  // Bit i of word i / 64: chunk i is final. Words of a whole buffer; valid until release().
  const Atomic<uint64_t>* bitmap(uint64_t message) const noexcept;
  // Packets of the message that are final, as words of a bitmap; nullptr before one has arrived.
  const std::vector<uint64_t>* packets(uint64_t message) const noexcept;
  // The message's layout and scheme; nullopt before a packet has arrived.
  std::optional<MessageHead> head(uint64_t message) const noexcept;
  struct Counts {
    uint32_t chunks = 0; // of the message; of its receive before a packet has arrived
    uint32_t chunks_set = 0;
    uint32_t packets = 0; // 0 before one has arrived
    uint32_t packets_set = 0;
    uint64_t placed = 0; // bytes of the chunks that are set
  };
  Counts counts(uint64_t message) const noexcept; // all 0: there is no such message
  // Ends a message as partial or as cancelled. Nothing of it is placed from here on.
  void finish(uint64_t message, End how);
  // After the event of a message: its bitmap goes.
  void release(uint64_t message);

  // Packets of a run that arrived, and the sequence number of the last of them. Returns those that
  // are new and whose bytes are to be placed, or, of parity, to be kept.
  uint64_t arrive(const MessageHead& head, Kind kind, uint32_t word, uint64_t packets,
                  uint64_t sequence, Time now);
  // The bytes of these data packets are at their place.
  void placed(uint64_t message, uint32_t word, uint64_t packets);
  // Packets of a code that arrived, data that is placed or parity that is kept: columns that they
  // complete become decodable.
  void check(uint64_t message, Kind kind, uint32_t word, uint64_t packets);
  std::optional<Column> take_decodable();
  // The packets of a column that were missing are at their place.
  void decoded(const Column& column);
  // Whether parity of a block is still of use; what is kept of it may go otherwise.
  bool wants_parity(uint64_t message, uint32_t block) const noexcept;

  // The receive queue was found empty, or nearly: so many losses may have been met by no buffer.
  void starved(uint64_t packets) noexcept { stats_.starved += packets; }

  // What to tell the sender now, in sections of at most `words` bitmap words in all; nullopt if
  // nothing is due before wake().
  std::optional<Feedback> feedback(Time now, size_t words);
  Time wake(Time now) const;
  std::optional<ReceiveEvent> take_event();
  const ReceiverStats& stats() const noexcept { return stats_; }
  // Packets that arrived, and how many the sender had sent when it sent the last of them.
  uint64_t arrived() const noexcept { return arrived_; }
  uint64_t highest() const noexcept { return highest_; }
  // As the sender says in its packets; until then a guess.
  void round_trip(Time seen) noexcept { round_trip_ = seen; }

private:
  using Message = ReceiverMessage;
  struct Ended { // is reported some times more, and whenever the sender asks
    uint64_t message = 0;
    End end = End::open;
    uint32_t to_say = 0;
  };

  Message* find(uint64_t message) const noexcept;
  bool begin(Message& m, const MessageHead& head);
  void arrive_notice(uint64_t message, Kind kind);
  uint64_t arrive_data(Message& m, uint32_t word, uint64_t packets);
  uint64_t arrive_parity(Message& m, uint32_t word, uint64_t packets);
  static void place(Message& m, uint32_t chunk, uint32_t packets) noexcept;
  static bool wants_parity(const Message& m, uint32_t block) noexcept;
  void check(Message& m, uint32_t block, uint32_t column);
  void end(Message& m, End how);
  void say_end_again(uint64_t message) noexcept;
  // receiver_feedback.cpp
  Time interval() const noexcept;
  bool open_begun() const noexcept;
  void expire(Time now);
  bool say_open(Feedback& out, size_t words);

  ReceiverOptions options_;
  ReceiverStats stats_;
  uint64_t next_message_ = 0;
  uint64_t first_message_ = 0;
  std::deque<std::unique_ptr<Message>> messages_; // by number, from first_message_; null: released
  mutable Message* found_ = nullptr;              // asked for last
  std::deque<ReceiveEvent> events_;
  std::deque<Column> decodable_;
  uint64_t highest_ = 0;
  Time highest_at_{0};
  uint64_t arrived_ = 0;
  Time round_trip_{std::chrono::milliseconds(1)};
  Time told_at_{0};
  Time heard_at_{0};
  bool ever_told_ = false;
  bool unsaid_ = false;    // something arrived since the last report
  bool urgent_ = false;    // the sender may wait for something in it
  bool going_on_ = false;  // the last report had no room for all sections
  uint32_t idle_told_ = 0; // reports since anything arrived
  uint64_t arrived_told_ = 0;
  size_t open_ = 0; // messages
  std::deque<Ended> ended_;
};

} // namespace adverb::reliability
