// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Selective repeat: when the last piece of a message arrives. Piece i of M is sent at i * spacing
// and, while it is lost, again after each interval (SDR-RDMA, arXiv 2505.05366, section 4: X_i =
// i T_inj + (RTO + T_inj)(Y_i - 1), Y_i geometric). The tail is the time from the end of the first
// injection, M * spacing, to max X_i; P(tail <= s) is a product over the pieces.
//
// The product takes bounded time for any M. Its logarithm is a sum over pieces of a step function
// of the piece's time, and the sum is taken as an integral. That moves no time by more than half a
// spacing. Above a loss of about 0.8 several rounds share a step, with an error below 1 %.
//
// Immutable and without allocation; any thread may ask.
#pragma once

#include <array>
#include <cstddef>

namespace adverb::reliability {

class Rounds {
public:
  // `log_loss` is the logarithm of a piece's chance of loss, minus infinity without loss;
  // `interval_ns` is the time from one transmission of a piece to its next and is above 0;
  // `most_pieces` bounds the pieces of later questions.
  Rounds(double log_loss, double interval_ns, double most_pieces) noexcept;

  // ln P(tail <= tail_ns) for tail_ns >= 0.
  double log_within(double pieces, double spacing_ns, double tail_ns) const noexcept;
  // The mean of the tail.
  double mean_ns(double pieces, double spacing_ns) const noexcept;
  // A tail that is certain but for a chance of 1e-17.
  double longest_ns(double spacing_ns) const noexcept {
    return spacing_ns + static_cast<double>(cells_) * cell_ns_;
  }

private:
  static constexpr size_t most_cells = 256;

  // The integral of -ln(1 - loss^(rounds by then)) from `from_ns` after a piece's first
  // transmission to the end of the cells.
  double missing_beyond(double from_ns) const noexcept;

  size_t cells_ = 0;
  double cell_ns_ = 0;
  std::array<double, most_cells + 1> beyond_{}; // missing_beyond() at the start of each cell
};

} // namespace adverb::reliability
