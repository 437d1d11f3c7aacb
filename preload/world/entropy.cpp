// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "world/entropy.h"

#include <sys/random.h>
#include <sys/types.h>

namespace adverb {

void KernelEntropy::fill(void* to, size_t bytes) noexcept {
  auto* at = static_cast<char*>(to);
  while (bytes != 0) {
    const ssize_t n = getrandom(at, bytes, 0); // a signal cuts it short
    if (n > 0) {
      at += n;
      bytes -= static_cast<size_t>(n);
    }
  }
}

} // namespace adverb
