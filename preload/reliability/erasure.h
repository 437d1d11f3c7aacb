// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Erasure codes: m parity shards, made of k data shards, from which lost data shards are rebuilt.
//
// A shard is a range of bytes; all shards of one call have the same length. The codes are linear
// byte by byte, so a caller may decode each packet column of a block by itself: `bytes` is then one
// packet's, and each column has its own losses. Shards are numbered 0 to k - 1, data, then k to
// k + m - 1, parity.
//
// Kinds, after SDR-RDMA (arXiv 2505.05366):
// - XOR: parity i is the sum of the data shards j with j % m == i. These form group i, in which one
//   loss can be repaired.
// - MDS, maximum distance separable: any m losses can be repaired. The parity rows are
// Matrix::cauchy().
#pragma once

#include "reliability/isal.h"
#include "reliability/matrix.h"
#include "reliability/product.h"

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace adverb::reliability {

enum class CodeKind : uint8_t { xor_parity, mds };

struct CodeShape {
  static constexpr unsigned shards_max = 255;

  CodeKind kind;
  uint8_t k; // data shards
  uint8_t m; // parity shards

  constexpr bool valid() const {
    return (kind == CodeKind::xor_parity || kind == CodeKind::mds) && k >= 1 && m >= 1 &&
           unsigned{k} + m <= shards_max && (kind != CodeKind::xor_parity || m <= k);
  }
  bool operator==(const CodeShape&) const = default;
};

// A set of shards, by their numbers.
using ShardSet = std::bitset<256>;

// Belongs to one thread at a time, as encoding and decoding change caches of the object. Functions
// throw std::bad_alloc if memory for these is short, and then have written nothing. Shards belong
// to the caller; shards that are written overlap no other shard.
//
// Caches hold about 32 bytes (without libisal 1 byte) per matrix element. Parity has 2 * m rows of
// k elements at most. Each of the `plans_max` patterns of losses that were decoded last has a row
// of k elements per shard rebuilt.
class Code {
public:
  static constexpr size_t plans_max = 16;

  // With libisal if the host has it, and otherwise with gf256.h; both make the same bytes. Throws
  // std::invalid_argument if the shape is not valid.
  explicit Code(CodeShape shape);
  // For tests: a null `isal` means gf256.h. Otherwise it outlives the object.
  Code(CodeShape shape, const Isal* isal);

  const CodeShape& shape() const { return shape_; }
  // False: gf256.h. XOR codes always use gf256.h, as they multiply nothing.
  bool uses_isal() const { return isal_ != nullptr; }

  // Writes `bytes` bytes of each of the m parity shards. `data` has k pointers; a null pointer is a
  // shard of zeros, as at the end of a message that does not fill its last block.
  void encode(std::span<const std::byte* const> data, std::span<std::byte* const> parity,
              size_t bytes);
  // The same for parity shard `index` (0 to m - 1) alone.
  void encode_one(size_t index, std::span<const std::byte* const> data, std::byte* parity,
                  size_t bytes);

  // Whether all data shards can be had if the shards in `have` are present. Of `have`, bits from
  // k + m on are ignored.
  bool can_decode(const ShardSet& have) const;

  // Rebuilds the data shards that are in `wanted` and not in `have`. `shards` has k + m pointers.
  // Of data shards in `have` a null pointer is a shard of zeros. Parity shards in `have` are not
  // null. Pointers of all other shards are not used. Only shards in `have` are read. False: at
  // least one wanted shard cannot be rebuilt, and nothing was written.
  bool decode(std::span<std::byte* const> shards, const ShardSet& have, size_t bytes,
              const ShardSet& wanted);

private:
  // How to make `outputs` of `sources`, which are k shards for all patterns of losses.
  struct Plan {
    ShardSet sources;
    ShardSet outputs;
    Product product;
  };

  void sum_group(std::span<const std::byte* const> shards, size_t group, size_t except,
                 std::byte* into, size_t bytes) const;
  bool decode_xor(std::span<std::byte* const> shards, const ShardSet& have, const ShardSet& outputs,
                  size_t bytes) const;
  bool decode_mds(std::span<std::byte* const> shards, const ShardSet& have, const ShardSet& outputs,
                  size_t bytes);
  bool group_repairable(size_t group, const ShardSet& have) const;
  ShardSet sources_among(const ShardSet& have) const;
  Plan& plan(const ShardSet& sources, const ShardSet& outputs);
  Matrix decoding_matrix(const ShardSet& sources, const ShardSet& outputs) const;

  const CodeShape shape_;
  const Isal* const isal_;
  const ShardSet data_;                          // shards 0 to k - 1
  const ShardSet all_;                           // shards 0 to k + m - 1
  const Matrix parity_;                          // of MDS
  std::optional<Product> encoder_;               // of all parity shards
  std::vector<std::optional<Product>> encoders_; // of one parity shard each
  std::vector<Plan> plans_;                      // the one used last is first
  std::vector<const std::byte*> sources_;        // scratch of decode()
  std::vector<std::byte*> outputs_;
};

} // namespace adverb::reliability
