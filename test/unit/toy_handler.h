// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Handlers of a test's own: one row each beside those that adverb has.
#pragma once

#include "transfer/handler.h"

#include <optional>
#include <vector>

namespace adverb::test {

inline constexpr uint8_t toy_echo = 40;    // answers with its payload reversed
inline constexpr uint8_t toy_later = 41;   // of a queue pair; keeps its token
inline constexpr uint8_t toy_channel = 42; // of the channel; keeps its token
inline constexpr uint8_t toy_alone = 43;   // of no domain; keeps its token
inline constexpr uint8_t toy_drop = 44;    // forgets to answer
inline constexpr uint8_t toy_throw = 45;
inline constexpr uint8_t toy_fail = 46;  // of a queue pair; refuses at once
inline constexpr uint8_t toy_told = 47;  // tells the peer of `to_tell`
inline constexpr uint8_t toy_named = 48; // asks for a virtual key
inline constexpr uint8_t toy_turn = 49;  // as toy_later; others may follow in its message

extern const transfer::HandlerRow toy_echo_row;
extern const std::vector<const transfer::HandlerRow*> toy_rows; // all of them

// What the handlers that keep their tokens hold, in the order they ran.
struct Kept {
  uint64_t request;
  transfer::ReplyToken token;
};
extern std::vector<Kept> kept;
extern std::shared_ptr<registration::Key> to_tell;

} // namespace adverb::test
