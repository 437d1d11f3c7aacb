// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What is fuzzed: each parser of bytes that other processes or hosts wrote.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace adverb::fuzz {

using Bytes = std::vector<std::byte>;

struct Target {
  const char* name;
  // Aborts if what is parsed is not as its reader relies on. The sanitizers watch the rest.
  void (*run)(std::span<const std::byte> input);
  std::vector<Bytes> seeds; // well-formed inputs
  unsigned cost = 1;        // how many times as long as the others' one input takes
};

const std::vector<Target>& targets();

} // namespace adverb::fuzz
