// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "reliability/erasure.h"
#include "reliability/gf256.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace adverb::reliability {
namespace {

CodeShape checked(CodeShape shape) {
  if (!shape.valid())
    throw std::invalid_argument(
        "no erasure code has " + std::to_string(shape.k) + " data and " + std::to_string(shape.m) +
        " parity shards: each is at least 1, both together are at most " +
        std::to_string(CodeShape::shards_max) + ", and an XOR code has no more parity than data");
  return shape;
}

ShardSet first(size_t count) {
  ShardSet set;
  for (size_t shard = 0; shard < count; ++shard)
    set.set(shard);
  return set;
}

std::vector<size_t> numbers(const ShardSet& set) {
  std::vector<size_t> found;
  found.reserve(set.count());
  for (size_t shard = 0; shard < set.size(); ++shard)
    if (set.test(shard))
      found.push_back(shard);
  return found;
}

} // namespace

Code::Code(CodeShape shape) : Code(shape, shape.kind == CodeKind::mds ? isal() : nullptr) {}

Code::Code(CodeShape shape, const Isal* isal)
    : shape_(checked(shape)), isal_(shape.kind == CodeKind::mds ? isal : nullptr),
      data_(first(shape.k)), all_(first(size_t{shape.k} + shape.m)),
      parity_(shape.kind == CodeKind::mds ? Matrix::cauchy(shape.k, shape.m) : Matrix(0, 0)),
      encoders_(shape.kind == CodeKind::mds ? shape.m : 0) {
  plans_.reserve(plans_max);
}

void Code::encode(std::span<const std::byte* const> data, std::span<std::byte* const> parity,
                  size_t bytes) {
  assert(data.size() == shape_.k && parity.size() == shape_.m);
  if (shape_.kind == CodeKind::xor_parity) {
    for (size_t i = 0; i < shape_.m; ++i)
      encode_one(i, data, parity[i], bytes);
    return;
  }
  if (!encoder_)
    encoder_.emplace(parity_, isal_);
  encoder_->multiply(data, parity, bytes);
}

void Code::encode_one(size_t index, std::span<const std::byte* const> data, std::byte* parity,
                      size_t bytes) {
  assert(data.size() == shape_.k && index < shape_.m);
  if (shape_.kind == CodeKind::xor_parity) {
    memset(parity, 0, bytes);
    sum_group(data, index, shape_.k, parity, bytes);
    return;
  }
  auto& encoder = encoders_[index];
  if (!encoder) {
    Matrix row(1, shape_.k);
    for (size_t j = 0; j < shape_.k; ++j)
      row.at(0, j) = parity_.at(index, j);
    encoder.emplace(std::move(row), isal_);
  }
  encoder->multiply(data, {&parity, 1}, bytes);
}

bool Code::can_decode(const ShardSet& have) const {
  if (shape_.kind == CodeKind::mds)
    return (have & all_).count() >= shape_.k;
  for (size_t group = 0; group < shape_.m; ++group)
    if (!group_repairable(group, have))
      return false;
  return true;
}

bool Code::decode(std::span<std::byte* const> shards, const ShardSet& have, size_t bytes,
                  const ShardSet& wanted) {
  assert(shards.size() == size_t{shape_.k} + shape_.m);
  const ShardSet outputs = wanted & data_ & ~have;
  if (outputs.none())
    return true;
  return shape_.kind == CodeKind::mds ? decode_mds(shards, have, outputs, bytes)
                                      : decode_xor(shards, have, outputs, bytes);
}

// XOR.

// Whether the group's data shards can be had: none is lost, or one is and its parity is present.
bool Code::group_repairable(size_t group, const ShardSet& have) const {
  size_t lost = 0;
  for (size_t j = group; j < shape_.k; j += shape_.m)
    lost += have.test(j) ? 0 : 1;
  return lost == 0 || (lost == 1 && have.test(shape_.k + group));
}

// Adds the group's data shards, but for shard `except`, to `into`.
void Code::sum_group(std::span<const std::byte* const> shards, size_t group, size_t except,
                     std::byte* into, size_t bytes) const {
  for (size_t j = group; j < shape_.k; j += shape_.m)
    if (j != except && shards[j] != nullptr)
      gf256::add(into, shards[j], bytes);
}

bool Code::decode_xor(std::span<std::byte* const> shards, const ShardSet& have,
                      const ShardSet& outputs, size_t bytes) const {
  for (size_t j = 0; j < shape_.k; ++j)
    if (outputs.test(j) && !group_repairable(j % shape_.m, have))
      return false;
  for (size_t j = 0; j < shape_.k; ++j) {
    if (!outputs.test(j))
      continue;
    const size_t group = j % shape_.m;
    memcpy(shards[j], shards[shape_.k + group], bytes);
    sum_group(shards, group, j, shards[j], bytes);
  }
  return true;
}

// MDS.

bool Code::decode_mds(std::span<std::byte* const> shards, const ShardSet& have,
                      const ShardSet& outputs, size_t bytes) {
  if (!can_decode(have))
    return false;
  const ShardSet sources = sources_among(have);
  Plan& chosen = plan(sources, outputs);
  sources_.clear();
  outputs_.clear();
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    assert(shard < shape_.k || !sources.test(shard) || shards[shard] != nullptr);
    if (sources.test(shard))
      sources_.push_back(shards[shard]);
    else if (outputs.test(shard))
      outputs_.push_back(shards[shard]);
  }
  chosen.product.multiply(sources_, outputs_, bytes);
  return true;
}

// All data shards that are present, and as many parity shards as data shards are lost.
ShardSet Code::sources_among(const ShardSet& have) const {
  ShardSet sources = have & data_;
  size_t short_of = shape_.k - sources.count();
  for (size_t shard = shape_.k; short_of != 0; ++shard)
    if (have.test(shard)) {
      sources.set(shard);
      --short_of;
    }
  return sources;
}

Code::Plan& Code::plan(const ShardSet& sources, const ShardSet& outputs) {
  auto found = std::ranges::find_if(plans_, [&](const Plan& known) {
    return known.sources == sources && known.outputs == outputs;
  });
  if (found == plans_.end()) {
    Plan made{sources, outputs, Product(decoding_matrix(sources, outputs), isal_)};
    if (plans_.size() < plans_max)
      plans_.push_back(std::move(made));
    else
      plans_.back() = std::move(made);
    found = plans_.end() - 1;
  }
  std::rotate(plans_.begin(), found, found + 1);
  return plans_.front();
}

// With x the lost data shards, y the present ones and p the parity shards among the sources, parity
// rows say p = A x + B y, where A and B are columns of parity_. So x = inverse(A) (p + B y).
Matrix Code::decoding_matrix(const ShardSet& sources, const ShardSet& outputs) const {
  const std::vector<size_t> lost = numbers(data_ & ~sources);
  const std::vector<size_t> present = numbers(sources & data_);
  const std::vector<size_t> used = numbers(sources & ~data_);
  Matrix a(used.size(), lost.size());
  for (size_t i = 0; i < used.size(); ++i)
    for (size_t j = 0; j < lost.size(); ++j)
      a.at(i, j) = parity_.at(used[i] - shape_.k, lost[j]);
  const Matrix inverse = a.inverse();

  Matrix result(outputs.count(), shape_.k);
  size_t row = 0;
  for (size_t x = 0; x < lost.size(); ++x) {
    if (!outputs.test(lost[x]))
      continue;
    for (size_t i = 0; i < used.size(); ++i) {
      const uint8_t factor = inverse.at(x, i);
      result.at(row, present.size() + i) = factor;
      for (size_t j = 0; j < present.size(); ++j)
        result.at(row, j) ^= gf256::multiply(factor, parity_.at(used[i] - shape_.k, present[j]));
    }
    ++row;
  }
  return result;
}

} // namespace adverb::reliability
