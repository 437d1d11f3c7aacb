// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One message over a link of constant rate and delay that loses packets independently, by the
// library's own sender and receiver under a virtual clock. No part of libadverb.so.
#pragma once

#include "reliability/layout.h"
#include "reliability/rate.h"
#include "reliability/scheme.h"

#include <cstdint>
#include <optional>
#include <random>

namespace adverb::reliability {

struct SimulatedLink {
  double bytes_per_second = 0;
  Time round_trip{0};
  double loss = 0;                   // the chance of a packet, below 1
  std::optional<double> report_loss; // the chance of a report; as of a packet if it is not set
};

struct SimulatedMessage {
  Time took{0};         // from the post to the sender's event
  uint64_t packets = 0; // sent, probes left out
  uint64_t repairs = 0; // of them
  uint64_t parity = 0;  // of them
};

// Which of many packets are lost: the number of those between two losses is geometric, so that what
// arrives costs nothing.
class RandomLoss {
public:
  RandomLoss(double chance, std::mt19937_64& random);
  // Of these packets, those that arrive.
  uint64_t survivors(uint64_t packets, std::mt19937_64& random);

private:
  void draw(std::mt19937_64& random);

  double chance_;
  uint64_t before_loss_ = 0; // packets
};

class Simulation {
public:
  Simulation(const SimulatedLink& link, uint64_t seed);
  // `alpha`: of the timeout, (1 + alpha) round trips. Nothing if one side gives the message up, as
  // it has not heard of the other for too long. The layout fits() and the scheme is valid().
  std::optional<SimulatedMessage> send(const Layout& layout, const Scheme& scheme, double alpha);

private:
  SimulatedLink link_;
  std::mt19937_64 random_;
  RandomLoss packets_;
  RandomLoss reports_;
};

} // namespace adverb::reliability
