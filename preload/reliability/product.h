// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A matrix made ready to be multiplied by shards: libisal's tables of it, if the host has libisal.
#pragma once

#include "reliability/isal.h"
#include "reliability/matrix.h"

#include <cstddef>
#include <span>
#include <vector>

namespace adverb::reliability {

// Belongs to one thread at a time: a multiplication uses scratch memory of the object.
class Product {
public:
  // `isal` may be null. Otherwise it outlives the object.
  Product(Matrix matrix, const Isal* isal);

  // outputs[r] = sum of matrix(r, j) * sources[j]. One pointer per row and per column, to `bytes`
  // bytes each. A null source is a shard of zeros. Outputs overlap neither each other nor sources.
  void multiply(std::span<const std::byte* const> sources, std::span<std::byte* const> outputs,
                size_t bytes);

private:
  void by_isal(std::span<const std::byte* const> sources, std::span<std::byte* const> outputs,
               size_t at, size_t bytes);
  void by_tables(std::span<const std::byte* const> sources, std::span<std::byte* const> outputs,
                 size_t at, size_t bytes) const;

  Matrix matrix_;
  const Isal* isal_;
  // Of libisal alone.
  std::vector<unsigned char> tables_;
  std::vector<unsigned char*> sources_;
  std::vector<unsigned char*> outputs_;
};

} // namespace adverb::reliability
