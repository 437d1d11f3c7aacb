// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Erasure codes rebuild exactly the shards that they promise to rebuild, touch no other byte, and
// make the same bytes with libisal as without. Seeds are fixed, so losses are the same each time.
#include "catch.h"
#include "reliability/erasure.h"
#include "reliability/gf256.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <vector>

using namespace adverb::reliability;

namespace {

constexpr size_t guard_bytes = 32;
constexpr std::byte guard{0xa5};
constexpr std::byte poison{0x5a};

const Isal* required_isal() {
  INFO("libisal2 has to be installed (scripts/setup)");
  REQUIRE(isal() != nullptr);
  return isal();
}

// An address where each access is a fault: the pointer of a shard that may be neither read nor
// written.
std::byte* nowhere() {
  static void* const page = mmap(nullptr, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  return static_cast<std::byte*>(page);
}

// One shard between guards, at an odd address.
class Shard {
public:
  explicit Shard(size_t bytes) : bytes_(bytes), memory_(bytes + 2 * guard_bytes + 1, guard) {}

  std::byte* data() { return memory_.data() + front(); }
  const std::byte* data() const { return memory_.data() + front(); }
  void fill(std::byte with) { std::fill_n(data(), bytes_, with); }
  // Tests are not optimized: words and memcmp() keep them short.
  void fill(std::mt19937& random) {
    for (size_t at = 0; at < bytes_; at += sizeof(uint32_t)) {
      const auto word = static_cast<uint32_t>(random());
      memcpy(data() + at, &word, std::min(sizeof word, bytes_ - at));
    }
  }
  bool guarded() const {
    static const std::vector<std::byte> guards(2 * guard_bytes, guard);
    const auto before = static_cast<size_t>(front());
    const size_t behind = memory_.size() - before - bytes_;
    return memcmp(memory_.data(), guards.data(), before) == 0 &&
           memcmp(data() + bytes_, guards.data(), behind) == 0;
  }
  bool holds(const Shard& other) const { return memcmp(data(), other.data(), bytes_) == 0; }
  bool is(std::byte with) const {
    return std::all_of(data(), data() + bytes_, [&](std::byte byte) { return byte == with; });
  }

private:
  ptrdiff_t front() const {
    return guard_bytes + (reinterpret_cast<uintptr_t>(memory_.data()) % 2 == 0 ? 1 : 0);
  }

  size_t bytes_;
  std::vector<std::byte> memory_;
};

// k + m shards with random data and their parity. Data shards in `zeros` are named by null
// pointers.
struct Block {
  Block(Code& code, size_t bytes, std::mt19937& random, const ShardSet& zeros = {})
      : k(code.shape().k), m(code.shape().m), bytes(bytes), zeros(zeros),
        shards(k + m, Shard(bytes)) {
    for (size_t j = 0; j < k; ++j)
      if (zeros.test(j))
        shards[j].fill(std::byte{0});
      else
        shards[j].fill(random);
    for (size_t i = 0; i < m; ++i)
      shards[k + i].fill(poison); // encoding does not add to what was there
    code.encode(data(), parity(), bytes);
  }

  std::vector<const std::byte*> data() const {
    std::vector<const std::byte*> pointers;
    for (size_t j = 0; j < k; ++j)
      pointers.push_back(zeros.test(j) ? nullptr : shards[j].data());
    return pointers;
  }
  std::vector<std::byte*> parity() {
    std::vector<std::byte*> pointers;
    for (size_t i = 0; i < m; ++i)
      pointers.push_back(shards[k + i].data());
    return pointers;
  }

  size_t k, m, bytes;
  ShardSet zeros;
  std::vector<Shard> shards;
};

std::string in_words(const CodeShape& shape, const ShardSet& have, size_t bytes, bool by_isal) {
  return std::string(shape.kind == CodeKind::mds ? "MDS" : "XOR") + " (" + std::to_string(shape.k) +
         ", " + std::to_string(shape.m) + "), " + std::to_string(bytes) + " bytes, " +
         (by_isal ? "libisal" : "tables") + ", present: " + have.to_string();
}

// The promise, by counting: MDS up to m losses of any kind; XOR one loss in each group, of which
// the parity shard is one.
bool promised(const CodeShape& shape, const ShardSet& have) {
  const size_t all = size_t{shape.k} + shape.m;
  std::vector<size_t> lost(shape.kind == CodeKind::mds ? 1 : shape.m);
  for (size_t shard = 0; shard < all; ++shard) {
    const size_t group = shard < shape.k ? shard % lost.size() : (shard - shape.k) % lost.size();
    lost[group] += have.test(shard) ? 0 : 1;
  }
  const size_t most = shape.kind == CodeKind::mds ? shape.m : 1;
  return std::ranges::all_of(lost, [&](size_t losses) { return losses <= most; });
}

// Decodes the block with the shards in `have`; shards that are lost and not wanted are nowhere.
// What went wrong, or nothing.
std::string decode_fault(Code& code, const Block& block, const ShardSet& have,
                         const ShardSet& wanted) {
  auto copy = block.shards;
  std::vector<std::byte*> pointers;
  for (size_t shard = 0; shard < copy.size(); ++shard) {
    const bool wanted_data = shard < block.k && wanted.test(shard);
    if (!have.test(shard) && wanted_data)
      copy[shard].fill(poison);
    if (have.test(shard))
      pointers.push_back(block.zeros.test(shard) ? nullptr : copy[shard].data());
    else
      pointers.push_back(wanted_data ? copy[shard].data() : nowhere());
  }
  const bool decoded = code.decode(pointers, have, block.bytes, wanted);
  for (size_t shard = 0; shard < copy.size(); ++shard) {
    if (!copy[shard].guarded())
      return "bytes around shard " + std::to_string(shard) + " were written";
    const bool rebuilt = shard < block.k && wanted.test(shard) && !have.test(shard);
    if (!decoded && rebuilt && block.bytes != 0 && !copy[shard].is(poison))
      return "shard " + std::to_string(shard) + " was written though it cannot be rebuilt";
    if ((decoded || !rebuilt) && !copy[shard].holds(block.shards[shard]))
      return "shard " + std::to_string(shard) + " is wrong";
  }
  return decoded ? "" : "not decoded";
}

// Holds one pattern of losses against the promise.
void check(Code& code, const Block& block, const ShardSet& have) {
  const bool possible = promised(code.shape(), have);
  ShardSet every;
  every.set();
  ShardSet lost_data;
  for (size_t j = 0; j < block.k; ++j)
    lost_data.set(j, !have.test(j));
  const std::string fault = decode_fault(code, block, have, every);
  const bool good = code.can_decode(have) == possible &&
                    (possible || lost_data.none() ? fault.empty() : fault == "not decoded");
  if (good)
    return;
  FAIL(in_words(code.shape(), have, block.bytes, code.uses_isal())
       << ": " << fault << (possible ? "; is decodable" : "; is not decodable"));
}

ShardSet without(size_t all, std::mt19937& random, size_t losses) {
  std::vector<size_t> order(all);
  std::iota(order.begin(), order.end(), size_t{0});
  ShardSet have;
  for (size_t i = 0; i < all; ++i) {
    std::swap(order[i], order[i + random() % (all - i)]);
    have.set(order[i], i >= losses);
  }
  return have;
}

} // namespace

TEST_CASE("shapes that are no codes are refused", "[reliability]") {
  for (const CodeShape shape :
       {CodeShape{CodeKind::mds, 0, 1}, CodeShape{CodeKind::mds, 1, 0},
        CodeShape{CodeKind::mds, 255, 1}, CodeShape{CodeKind::mds, 248, 8},
        CodeShape{CodeKind::mds, 255, 255}, CodeShape{CodeKind::xor_parity, 0, 1},
        CodeShape{CodeKind::xor_parity, 3, 0}, CodeShape{CodeKind::xor_parity, 3, 4},
        CodeShape{CodeKind::xor_parity, 128, 128}, CodeShape{static_cast<CodeKind>(2), 4, 2}}) {
    INFO("k " << int{shape.k} << ", m " << int{shape.m});
    CHECK_FALSE(shape.valid());
    CHECK_THROWS_AS(Code(shape), std::invalid_argument);
  }
  for (const CodeShape shape : {CodeShape{CodeKind::mds, 1, 254}, CodeShape{CodeKind::mds, 247, 8},
                                CodeShape{CodeKind::xor_parity, 3, 3}}) {
    CHECK(shape.valid());
    CHECK_NOTHROW(Code(shape));
  }
}

TEST_CASE("codes use libisal if the host has it", "[reliability]") {
  required_isal();
  CHECK(Code({CodeKind::mds, 4, 2}).uses_isal());
  CHECK_FALSE(Code({CodeKind::mds, 4, 2}, nullptr).uses_isal());
  CHECK_FALSE(Code({CodeKind::xor_parity, 4, 2}).uses_isal());
}

TEST_CASE("parity i of XOR is the sum of the data shards j with j % m == i", "[reliability]") {
  std::mt19937 random(2);
  Code code({CodeKind::xor_parity, 8, 3});
  const Block block(code, 64, random);
  for (size_t i = 0; i < block.m; ++i)
    for (size_t at = 0; at < block.bytes; ++at) {
      std::byte sum{0};
      for (size_t j = i; j < block.k; j += block.m)
        sum ^= block.shards[j].data()[at];
      REQUIRE(block.shards[block.k + i].data()[at] == sum);
    }
}

TEST_CASE("all losses of small codes are repaired, or refused, as promised", "[reliability]") {
  std::mt19937 random(3);
  for (const Isal* by : {required_isal(), static_cast<const Isal*>(nullptr)})
    for (const CodeKind kind : {CodeKind::mds, CodeKind::xor_parity})
      for (const auto& [k, m] : std::vector<std::pair<uint8_t, uint8_t>>{
               {1, 1}, {4, 2}, {3, 3}, {5, 1}, {1, 4}, {2, 5}, {5, 3}, {6, 2}}) {
        const CodeShape shape{kind, k, m};
        if (!shape.valid())
          continue; // XOR with more parity than data
        Code code(shape, by);
        for (size_t bytes : {1, 7, 64}) {
          const Block block(code, bytes, random);
          for (size_t present = 0; present < size_t{1} << (k + m); ++present)
            check(code, block, present);
        }
        const Block large(code, 4096, random);
        for (size_t losses = 0; losses <= size_t{m} + 1U; ++losses)
          check(code, large, without(size_t{k} + m, random, losses));
      }
}

TEST_CASE("random losses of large codes are repaired, or refused, as promised", "[reliability]") {
  std::mt19937 random(4);
  for (const Isal* by : {required_isal(), static_cast<const Isal*>(nullptr)})
    for (const CodeShape shape :
         {CodeShape{CodeKind::mds, 32, 8}, CodeShape{CodeKind::mds, 32, 12},
          CodeShape{CodeKind::mds, 223, 32}, CodeShape{CodeKind::mds, 247, 8},
          CodeShape{CodeKind::mds, 60, 90}, CodeShape{CodeKind::xor_parity, 32, 8},
          CodeShape{CodeKind::xor_parity, 247, 8}}) {
      Code code(shape, by);
      for (size_t bytes : {1, 7, 64, 4096}) {
        const Block block(code, bytes, random);
        const size_t rounds = bytes == 4096 ? 1 : 3;
        for (size_t round = 0; round < rounds; ++round)
          for (const size_t losses :
               {size_t{1}, size_t{2}, size_t{shape.m} / 2, size_t{shape.m}, size_t{shape.m} + 1})
            check(code, block, without(size_t{shape.k} + shape.m, random, losses));
      }
    }
}

TEST_CASE("null pointers are shards of zeros, for encoding and for decoding", "[reliability]") {
  std::mt19937 random(5);
  ShardSet last;
  for (size_t j = 3; j < 8; ++j)
    last.set(j);
  ShardSet all = last;
  for (size_t j = 0; j < 3; ++j)
    all.set(j);
  for (const Isal* by : {required_isal(), static_cast<const Isal*>(nullptr)})
    for (const CodeKind kind : {CodeKind::mds, CodeKind::xor_parity})
      for (const ShardSet& zeros : {last, all})
        for (size_t bytes : {1, 7, 4096, 4097, 9000}) {
          Code code({kind, 8, 4}, by);
          Block block(code, bytes, random, zeros);
          const auto short_parity = block.shards;
          block.zeros.reset(); // the same shards by their bytes, which are zeros
          code.encode(block.data(), block.parity(), bytes);
          for (size_t i = 8; i < 12; ++i)
            REQUIRE(short_parity[i].holds(block.shards[i]));
          block.zeros = zeros;
          for (size_t round = 0; round < 8; ++round)
            check(code, block, without(12, random, round % 6));
        }
}

TEST_CASE("parity made one shard at a time is the same", "[reliability]") {
  std::mt19937 random(6);
  for (const Isal* by : {required_isal(), static_cast<const Isal*>(nullptr)})
    for (const CodeShape shape : {CodeShape{CodeKind::mds, 32, 8}, CodeShape{CodeKind::mds, 1, 1},
                                  CodeShape{CodeKind::xor_parity, 32, 8}})
      for (size_t bytes : {1, 7, 64, 4096, 5000}) {
        Code code(shape, by);
        const Block block(code, bytes, random);
        for (size_t i = block.m; i-- != 0;) {
          Shard parity(bytes);
          parity.fill(poison);
          code.encode_one(i, block.data(), parity.data(), bytes);
          REQUIRE(parity.guarded());
          REQUIRE(parity.holds(block.shards[block.k + i]));
        }
      }
}

TEST_CASE("libisal and tables make the same parity, the sum of products", "[reliability]") {
  const Isal* by_isal = required_isal();
  for (const CodeShape shape : {CodeShape{CodeKind::mds, 1, 1}, CodeShape{CodeKind::mds, 4, 2},
                                CodeShape{CodeKind::mds, 32, 8}, CodeShape{CodeKind::mds, 247, 8},
                                CodeShape{CodeKind::mds, 60, 90}})
    for (size_t bytes : {1, 7, 16, 31, 64, 1500, 4096, 4099}) {
      Code fast(shape, by_isal);
      Code slow(shape, nullptr);
      std::mt19937 same(7);
      std::mt19937 bytes_of(7);
      const Block left(fast, bytes, same);
      const Block right(slow, bytes, bytes_of);
      INFO(in_words(shape, {}, bytes, true));
      for (size_t shard = 0; shard < left.shards.size(); ++shard)
        REQUIRE(left.shards[shard].holds(right.shards[shard]));
      const Matrix parity = Matrix::cauchy(shape.k, shape.m);
      for (size_t i = 0; i < shape.m; ++i) {
        unsigned sum = 0;
        for (size_t j = 0; j < shape.k; ++j)
          sum ^= gf256::multiply(parity.at(i, j),
                                 std::to_integer<uint8_t>(right.shards[j].data()[bytes - 1]));
        REQUIRE(std::to_integer<unsigned>(right.shards[shape.k + i].data()[bytes - 1]) == sum);
      }
    }
}

TEST_CASE("unwanted shards are left alone, after any decoding before", "[reliability]") {
  std::mt19937 random(8);
  for (const Isal* by : {required_isal(), static_cast<const Isal*>(nullptr)}) {
    Code code({CodeKind::mds, 6, 4}, by);
    const Block block(code, 64, random);
    ShardSet have;
    for (size_t shard = 3; shard < 10; ++shard)
      have.set(shard);
    // All that can be wanted of three lost shards, twice.
    for (size_t wanted = 0; wanted < 16; ++wanted) {
      INFO("wanted: " << wanted % 8);
      CHECK(decode_fault(code, block, have, wanted % 8).empty());
    }
  }
}

TEST_CASE("patterns of losses that come again after many others are repaired", "[reliability]") {
  std::mt19937 random(9);
  for (const Isal* by : {required_isal(), static_cast<const Isal*>(nullptr)}) {
    Code code({CodeKind::mds, 32, 8}, by);
    const Block block(code, 64, random);
    // Each round goes through more patterns than are kept; every third one is the first again.
    for (size_t turn = 0; turn < 6 * Code::plans_max; ++turn) {
      const size_t lost = turn % 3 == 0 ? 0 : turn % (Code::plans_max + 4);
      ShardSet have;
      have.set();
      have.reset(lost);
      have.reset((lost * 7 + 5) % 32);
      check(code, block, have);
    }
  }
}

TEST_CASE("groups of XOR that are whole are repaired beside others that are lost",
          "[reliability]") {
  std::mt19937 random(10);
  Code code({CodeKind::xor_parity, 6, 2});
  const Block block(code, 64, random);
  ShardSet have;
  have.set();
  for (const size_t lost : {0, 2, 3}) // two of group 0, one of group 1
    have.reset(lost);
  CHECK_FALSE(code.can_decode(have));
  CHECK(decode_fault(code, block, have, ShardSet().set(3)).empty());
  CHECK(decode_fault(code, block, have, ShardSet().set(3).set(0)) == "not decoded");
}

TEST_CASE("numbers that are no shards of the code count for nothing", "[reliability]") {
  std::mt19937 random(12);
  for (const CodeKind kind : {CodeKind::mds, CodeKind::xor_parity}) {
    Code code({kind, 4, 2});
    const Block block(code, 64, random);
    for (size_t present = 0; present < 64; ++present)
      check(code, block, (ShardSet().set() << 6) | ShardSet(present));
  }
}

TEST_CASE("no bytes at all are encoded and decoded", "[reliability]") {
  std::mt19937 random(11);
  for (const CodeKind kind : {CodeKind::mds, CodeKind::xor_parity}) {
    Code code({kind, 4, 2});
    const Block block(code, 0, random);
    check(code, block, without(6, random, 1));
  }
}
