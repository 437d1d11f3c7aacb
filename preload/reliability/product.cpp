// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "reliability/product.h"
#include "reliability/gf256.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <utility>

namespace adverb::reliability {
namespace {

// Shards are multiplied in slices, so that one page of zeros serves every null source, and the
// slices of the outputs stay in the cache.
constexpr size_t slice = 4096;
constexpr std::array<unsigned char, slice> zeros{};

constexpr size_t table_bytes = 32; // of libisal's, per element

} // namespace

Product::Product(Matrix matrix, const Isal* isal) : matrix_(std::move(matrix)), isal_(isal) {
  if (isal_ == nullptr)
    return;
  tables_.resize(table_bytes * matrix_.elements().size());
  sources_.resize(matrix_.columns());
  outputs_.resize(matrix_.rows());
  // libisal reads the elements only, though its declaration does not say so.
  isal_->ec_init_tables(static_cast<int>(matrix_.columns()), static_cast<int>(matrix_.rows()),
                        const_cast<unsigned char*>(matrix_.elements().data()), tables_.data());
}

void Product::multiply(std::span<const std::byte* const> sources,
                       std::span<std::byte* const> outputs, size_t bytes) {
  assert(sources.size() == matrix_.columns() && outputs.size() == matrix_.rows());
  for (size_t at = 0; at < bytes; at += slice) {
    const size_t length = std::min(slice, bytes - at);
    if (isal_ != nullptr)
      by_isal(sources, outputs, at, length);
    else
      by_tables(sources, outputs, at, length);
  }
}

void Product::by_isal(std::span<const std::byte* const> sources,
                      std::span<std::byte* const> outputs, size_t at, size_t bytes) {
  // libisal reads sources only, though its declaration does not say so.
  const auto bytes_of = [](const std::byte* shard) {
    return const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(shard));
  };
  for (size_t j = 0; j < sources.size(); ++j)
    sources_[j] = sources[j] == nullptr ? const_cast<unsigned char*>(zeros.data())
                                        : bytes_of(sources[j] + at);
  for (size_t i = 0; i < outputs.size(); ++i)
    outputs_[i] = bytes_of(outputs[i] + at);
  isal_->ec_encode_data(static_cast<int>(bytes), static_cast<int>(sources.size()),
                        static_cast<int>(outputs.size()), tables_.data(), sources_.data(),
                        outputs_.data());
}

void Product::by_tables(std::span<const std::byte* const> sources,
                        std::span<std::byte* const> outputs, size_t at, size_t bytes) const {
  for (size_t i = 0; i < outputs.size(); ++i) {
    memset(outputs[i] + at, 0, bytes);
    for (size_t j = 0; j < sources.size(); ++j)
      if (sources[j] != nullptr)
        gf256::add_product(outputs[i] + at, matrix_.at(i, j), sources[j] + at, bytes);
  }
}

} // namespace adverb::reliability
