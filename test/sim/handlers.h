// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Kinds of requests that only the programs of a schedule know beside adverb's own: answered later,
// of each domain of order, and one whose function breaks. A peer that is no liar asks for none.
#pragma once

#include "transfer/handler.h"

#include <cstdint>
#include <memory>

namespace sim {

inline constexpr uint8_t later_kind = 100; // the first of three
inline constexpr uint8_t breaks_kind = 103;
inline constexpr uint8_t no_kind = 104; // nobody knows it

std::shared_ptr<adverb::transfer::Handlers> make_handlers();

} // namespace sim
