// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The door to adverb.ko.
#pragma once

#include <string>

namespace adverb::memory {

/// A descriptor of /dev/adverb, close-on-exec and non-blocking, of a module that fits this library.
/// -1: there is none, and `why` says so in words with what would help.
int open_module(std::string& why);

} // namespace adverb::memory
