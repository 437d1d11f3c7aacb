// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Preloaded twice, with different numbers: which marker() follows this library's own?
#include <dlfcn.h>

extern "C" __attribute__((visibility("default"))) int marker() {
  return MARKER;
}

extern "C" __attribute__((visibility("default"))) int next_marker() {
  using Marker = int (*)();
  const auto next = reinterpret_cast<Marker>(dlsym(RTLD_NEXT, "marker"));
  const int found =
      next != nullptr ? next() : 0; // not a tail call: this frame must stay the caller
  return found;
}
