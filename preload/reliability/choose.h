// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which scheme a message gets where the policy leaves that to the library.
#pragma once

#include "reliability/model.h"

#include <array>
#include <span>

namespace adverb::reliability {

// In order of preference: the first of those that are equally fast is chosen, and the list goes
// from no parity to the most.
inline constexpr std::array<Scheme, 7> candidates = {{
    {},
    {.parity = Parity::mds, .k = 32, .m = 2},
    {.parity = Parity::mds, .k = 32, .m = 4},
    {.parity = Parity::xor_parity, .k = 32, .m = 8},
    {.parity = Parity::mds, .k = 32, .m = 8},
    {.parity = Parity::mds, .k = 32, .m = 12},
    {.parity = Parity::mds, .k = 16, .m = 8},
}};

// A gain below this part of the time is none: the model is no more exact than that.
inline constexpr double least_gain = 1e-3;

struct Choice {
  Scheme scheme;
  double mean_ns = 0;
};

// The scheme with the least mean. A scheme is preferred to one before it in the list only if it is
// faster by least_gain. The list has 1 scheme at least, and all of them are valid. Pure, without
// allocation; any thread may call it.
// Whether a message goes behind so much that is not sent yet (bytes) that it takes a round trip to
// send. Then what counts is how many messages the link and the processors carry, and not how long
// one takes: a loss costs one packet more, parity packets and work for each message.
constexpr bool is_one_of_many(const Transfer& transfer, uint64_t unsent) noexcept {
  return static_cast<double>(unsent) >= transfer.bytes_per_second * transfer.rtt_ns / 1e9;
}

Choice choose_scheme(const Transfer& transfer, std::span<const Scheme> from = candidates) noexcept;

} // namespace adverb::reliability
