// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The same targets for libFuzzer (long.sh): ADVERB_FUZZ_TARGET names one.
#include "targets.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

const adverb::fuzz::Target& target() {
  static const auto& chosen = []() -> const adverb::fuzz::Target& {
    const char* const name = std::getenv("ADVERB_FUZZ_TARGET");
    for (const auto& one : adverb::fuzz::targets())
      if (name != nullptr && std::strcmp(one.name, name) == 0)
        return one;
    std::fprintf(stderr, "ADVERB_FUZZ_TARGET names no target\n");
    std::exit(2);
  }();
  return chosen;
}

} // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  for (const auto& seed : target().seeds)
    target().run(seed);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  target().run(std::as_bytes(std::span(data, bytes)));
  return 0;
}
