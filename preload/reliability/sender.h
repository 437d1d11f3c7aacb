// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The sending half of a pair of endpoints: which packet goes next, which is lost, which message has
// ended. It knows no bytes, no verbs, no thread and no clock: the caller says what time it is, puts
// the packets of each run on the wire, and hands over the feedback that comes back.
//
// How a packet goes: next() takes it from a message and notes it in the log of what is under way.
// Feedback judges each note: the packet is final at the receiver, or lost. A lost packet goes back
// to its message, to be sent again, or, under a code, waits until the parity of its block has been
// judged, too. One thread at a time.
#pragma once

#include "reliability/feedback.h"
#include "reliability/layout.h"
#include "reliability/rate.h"
#include "reliability/scheme.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace adverb::reliability {

// Packets to be sent now: those of word `word` whose bit in `packets` is set, of the message's data
// or of its parity. The first has the sequence number `sequence`, each further one the next. A
// probe and a cancellation have one packet, 0, and no payload.
struct Run {
  Kind kind = Kind::data;
  uint64_t message = 0;
  uint32_t word = 0;
  uint64_t packets = 0;
  uint64_t sequence = 0;
};

struct SenderBlock; // sender_parts.h, as the next two
struct SenderMessage;
struct SenderNote; // of a run that was sent; judged packet by packet

struct SenderOptions {
  Cut cut;
  RateOptions rate;
  double alpha = 2;                        // of the timeout: (1 + alpha) round trips
  Time silence = std::chrono::seconds(10); // without feedback ends all messages
  uint32_t run_packets = 16;               // of one run, at most 64
  uint64_t credit = 0;                     // sequence numbers that may be used before any feedback
  uint64_t granted = 0;                    // messages that may be sent before any feedback
  Time round_trip{0};                      // 0: unknown before any feedback
};

struct SenderStats {
  uint64_t packets = 0; // sent, probes left out
  uint64_t repairs = 0; // of them sent again
  uint64_t parity = 0;  // of them parity
  uint64_t probes = 0;
  uint64_t lost = 0;     // judged so
  uint64_t timeouts = 0; // of them by timeout
};

// A message is over: the buffer behind it is the program's again.
struct SendEvent {
  uint64_t message = 0;
  End end = End::open;
};

class Sender {
public:
  explicit Sender(const SenderOptions& options);
  ~Sender();

  // A message of so many bytes; its number, which is the number of the receive that it meets. With
  // `ready` false no packet goes before make_ready() has named it.
  uint64_t post(uint64_t bytes, const Scheme& scheme, bool ready = true);
  // Packets first to end - 1 may go. Of messages that are over nothing is left to do.
  void make_ready(uint64_t message, uint32_t first, uint32_t end);
  // Asks the receiver to end the message. The event comes when the receiver has.
  void cancel(uint64_t message);

  // Sends so many probes, as far as there is credit, unless a message is open: then its packets
  // tell as much. The receiver's answers say how long the path is and what it loses.
  void sound(uint32_t probes) noexcept { soundings_ = messages_.empty() ? probes : 0; }

  // The next packets to put on the wire, or none before wake().
  std::optional<Run> next(Time now);
  // When next() may have something, if nothing is heard until then; Time::max(): never.
  Time wake(Time now) const;
  void hear(const Feedback& feedback, Time now);
  std::optional<SendEvent> take_event();

  bool is_over(uint64_t message) noexcept { return find(message) == nullptr; }
  bool idle() const noexcept { return messages_.empty(); }
  uint64_t under_way() const noexcept { return under_way_; }
  // Packets that may go and were never sent. It looks at each open message.
  uint64_t unsent() const noexcept;
  uint64_t next_message() const noexcept { return next_message_; }
  const Rate& rate() const noexcept { return rate_; }
  const SenderStats& stats() const noexcept { return stats_; }

private:
  using Block = SenderBlock;
  using Message = SenderMessage;
  using Note = SenderNote;

  Message* find(uint64_t message) noexcept;
  uint64_t allowed() const noexcept; // packets of the next run
  bool is_silent(Time now) const noexcept;
  Time probe_due() const noexcept;
  Run repair_of(Message& m, uint64_t room, Time now);
  Run data_of(Message& m, uint64_t room, Time now);
  Run parity_of(Message& m, uint64_t room, Time now);
  Run sent(Kind kind, uint64_t message, uint32_t word, uint64_t packets, Time now);
  // sender_feedback.cpp
  void learn(const Feedback& feedback, Time now);
  void learn(const Section& section);
  void judge(const Feedback& feedback);
  void expire(Time now);
  void settle(Message& m, Note& note, uint64_t packets);
  void lose(Message& m, Note& note);
  void fall_back(Message& m, uint32_t block);
  void repeat_stalled(Message& m, uint32_t block);
  void repeat_missing(Message& m, uint32_t block);
  void again(Message& m, uint64_t packets, uint32_t word, Time sent);
  void forget_judged();
  void end(Message& m, End how);

  SenderOptions options_;
  Rate rate_;
  SenderStats stats_;
  uint64_t next_message_ = 0;
  std::deque<std::unique_ptr<Message>> messages_; // not over, by number
  std::deque<SendEvent> events_;
  std::deque<Note> log_;   // by sequence number
  uint64_t under_way_ = 0; // packets in it that are not judged
  uint64_t sequence_ = 0;  // of the next packet
  uint64_t credit_;
  uint64_t granted_;
  Time may_send_{0}; // by the pace
  Time burst_until_{0};
  Time last_sent_{0};
  Time last_heard_{0};
  Time waits_since_{0}; // since when something is under way or waiting that feedback must answer
  bool waits_ = false;
  uint32_t probes_in_a_row_ = 0; // since anything else was sent
  uint32_t soundings_ = 0;       // to be sent
  uint64_t payload_end_ = 0;     // sequence number behind the last packet that had any
  // Of the latest feedback.
  uint64_t highest_ = 0;
  Time highest_sent_{0};
  uint64_t arrived_ = 0;
  uint64_t starved_ = 0;
  uint64_t duplicates_ = 0;
  Time reordering_{0}; // a packet sent so much earlier than one that arrived is lost
};

} // namespace adverb::reliability
