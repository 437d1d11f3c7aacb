// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How numbers and foreign text are shown to a person.
#pragma once

#include <cstdint>
#include <string>

namespace adverb::tools {

// "3.0 MiB", "17 bytes", "2 regions": bytes are scaled, other units follow their number.
std::string amount(int64_t value, const char* unit);

// Text of other processes goes to a terminal, for root also of other users': no control characters,
// nor what changes the direction of text. Of what is no ASCII each byte becomes '?'.
std::string printable(std::string text);

} // namespace adverb::tools
