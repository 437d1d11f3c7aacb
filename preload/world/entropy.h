// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#pragma once

#include <cstddef>

namespace adverb {

/// Bytes nobody can guess: handles and nonces are capabilities. Any thread.
class Entropy {
public:
  virtual ~Entropy() = default;
  virtual void fill(void* to, size_t bytes) noexcept = 0;
};

/// The kernel's, by getrandom(2).
class KernelEntropy final : public Entropy {
public:
  void fill(void* to, size_t bytes) noexcept override;
};

} // namespace adverb
