// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How long a message takes over a link that loses packets, by scheme: the model of SDR-RDMA (arXiv
// 2505.05366, section 4), for one message on an idle link. Packets are lost independently of each
// other. The times begin with the first packet's injection and end with the sender's knowledge
// that the receiver has all.
//
// The model leaves out: bandwidth that retransmissions take from later pieces, loss of feedback,
// queues, the time to encode and decode. Its times are lower bounds.
//
// Pure functions without allocation; any thread may call them. No result is NaN. Most calls take
// microseconds; at a loss of packets near 0.9 a call may take a millisecond.
#pragma once

#include "reliability/scheme.h"

#include <cstdint>

namespace adverb::reliability {

// What the times depend on beside the scheme. Sizes, bandwidth and round trip are above 0; chunks
// are not shorter than packets.
struct Transfer {
  uint64_t message_bytes = 0;
  uint32_t chunk_bytes = 65536;
  uint32_t packet_bytes = 4096; // payload
  double bytes_per_second = 0;
  double rtt_ns = 0;
  double packet_loss = 0; // the chance of a packet; above most_loss it counts as that
  double alpha = 2;       // a timeout takes (1 + alpha) round trips
  double beta = 1;        // the receiver waits for parity this many round trips too long
};

inline constexpr double most_loss = 0.9;

struct Estimate {
  double mean_ns = 0;
  double p99_ns = 0;
  double p999_ns = 0;
  double fallback = 0; // the chance that parity is not enough
  double sent = 1;     // bytes on the wire over bytes of the message, mean
};

// The chance that parity is not enough for some block of the message.
struct Fallback {
  double by_chunk = 0; // a chunk with a packet lost counts as lost, as in the paper
  double by_column =
      0; // packet i of each chunk of a block is decoded by itself, as the library does
};

// Without loss: injection and a round trip.
double ideal_ns(const Transfer& transfer) noexcept;

// The chance that a whole chunk has a packet lost.
double chunk_loss(const Transfer& transfer) noexcept;

// The scheme's mean; cheaper than estimate(). The scheme is valid(). Without parity its unit is
// what is sent again, each after its own timeout or negative acknowledgement. With parity the unit
// is what a block is decoded by: chunks, as in the paper, or packet columns. The blocks that fail
// are then sent again in that unit.
double mean_ns(const Transfer& transfer, const Scheme& scheme) noexcept;

// The same with quantiles, which are right to half the injection time of one unit.
Estimate estimate(const Transfer& transfer, const Scheme& scheme) noexcept;

// 0 without parity.
Fallback fallback(const Transfer& transfer, const Scheme& scheme) noexcept;

// Go-back-N by packets, with an efficiency of (1 - p) / (1 + p W), W packets per round trip. No
// distribution follows from that: estimates of a mean alone.
struct GoBackN {
  double mean_ns = 0;
  double sent = 1;
};
GoBackN go_back_n(const Transfer& transfer) noexcept;

} // namespace adverb::reliability
