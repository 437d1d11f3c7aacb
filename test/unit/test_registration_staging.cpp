// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Staging and virtual keys, over the loopback device.
#include "catch.h"
#include "registration/budget.h"
#include "registration/keys.h"
#include "registration/regions.h"
#include "registration/staging.h"
#include "test_world.h"

#include <set>
#include <vector>

using namespace adverb::registration;

namespace {

struct Device {
  Device() {
    ibv_device** list = ibv_get_device_list(nullptr);
    REQUIRE(list != nullptr);
    context = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    REQUIRE(context != nullptr);
    pd = ibv_alloc_pd(context);
    other_pd = ibv_alloc_pd(context);
  }
  ~Device() {
    CHECK(ibv_dealloc_pd(pd) == 0); // refused while anything of ours is registered there
    CHECK(ibv_dealloc_pd(other_pd) == 0);
    CHECK(ibv_close_device(context) == 0);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  adverb::World& world() const { return bench->world; }
  std::unique_ptr<world_test::Bench> bench = std::make_unique<world_test::Bench>();
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_pd* other_pd = nullptr;
};

std::vector<Block> take_all(Staging& staging, size_t bytes) {
  std::vector<Block> blocks;
  while (Block b = staging.take(bytes))
    blocks.push_back(b);
  return blocks;
}

void give_all(Staging& staging, std::vector<Block>& blocks) {
  for (const Block& b : blocks)
    staging.give(b);
  blocks.clear();
}

std::shared_ptr<Key> take(KeyPool& pool) {
  std::shared_ptr<Key> key;
  REQUIRE(pool.take(key) == 0);
  return key;
}

ibv_mr* add_none(Regions& regions, const Device& device, std::vector<std::byte>& memory,
                 uint64_t iova, unsigned access) {
  ibv_mr* mr = nullptr;
  const auto refusal = regions.add(
      regions.backend(*adverb::policy::find_backend("none")),
      {device.pd, memory.data(), memory.size(), iova, access, Wanted::Verb::reg_mr_iova}, mr);
  REQUIRE_FALSE(refusal);
  return mr;
}

} // namespace

TEST_CASE("staging never takes more than its half of the budget, and takes that") {
  const Device device;
  Staging staging(device.world(), device.pd);
  auto blocks = take_all(staging, Staging::block_max);
  CHECK(blocks.size() == device.world().budgets().staging_bytes() / 2 / Staging::slab_bytes);
  give_all(staging, blocks);
}

TEST_CASE("blocks are as large as asked for and do not overlap") {
  const Device device;
  Staging staging(device.world(), device.pd);
  std::vector<Block> blocks;
  std::set<std::pair<std::byte*, std::byte*>> taken;
  const size_t sizes[] = {1, 256, 257, 1024, 4096, 5000, 16384, 65536};
  for (int round = 0; round < 20; ++round)
    for (const size_t size : sizes) {
      const Block b = staging.take(size);
      REQUIRE(b);
      taken.emplace(b.data, b.data + size);
      blocks.push_back(b);
    }
  const std::byte* end = nullptr;
  for (const auto& [from, to] : taken) {
    CHECK(from >= end);
    end = to;
  }
  CHECK(taken.size() == blocks.size());
  give_all(staging, blocks);
}

TEST_CASE(
    "a block above a slab's size has a slab of its own while there is room, and none beyond") {
  const Device device;
  Staging staging(device.world(), device.pd);
  const size_t most = device.world().budgets().staging_bytes() / 2;
  auto small = take_all(staging, 256);
  CHECK_FALSE(staging.take(Staging::block_max + 1));
  give_all(staging, small); // and their slabs make room
  CHECK_FALSE(staging.take(most + 1));
  const Block large = staging.take(most);
  REQUIRE(large);
  std::fill_n(large.data, most, std::byte{1});
  CHECK_FALSE(staging.take(256));
  staging.give(large);
  const Block again = staging.take(most - 4096);
  CHECK(again.data == large.data); // the same
  staging.give(again);
  CHECK(staging.take(256));
}

TEST_CASE("blocks of a power of two bytes pin no more than was asked for") {
  const Device device;
  for (size_t size = 256; size <= Staging::block_max; size *= 2) {
    Staging staging(device.world(), device.pd);
    auto blocks = take_all(staging, size);
    CHECK(blocks.size() == device.world().budgets().staging_bytes() / 2 / size);
    give_all(staging, blocks);
  }
}

TEST_CASE("slabs of one size make room for another when they are empty, not before") {
  const Device device;
  Staging staging(device.world(), device.pd);
  auto small = take_all(staging, 256);
  CHECK_FALSE(staging.take(4096));
  const size_t per_slab = Staging::slab_bytes / 256;
  REQUIRE(small.size() > per_slab);
  for (size_t i = 0; i < per_slab - 1; ++i) {
    staging.give(small.back());
    small.pop_back();
  }
  CHECK_FALSE(staging.take(4096));
  staging.give(small.back());
  small.pop_back();
  const Block large = staging.take(4096);
  CHECK(large);
  if (large)
    staging.give(large);
  give_all(staging, small);
}

TEST_CASE("a protection domain that needs nothing does not keep others from staging") {
  const Device device;
  Staging idle(device.world(), device.pd);
  auto blocks = take_all(idle, 4096);
  Staging busy(device.world(), device.other_pd);
  CHECK_FALSE(busy.take(256));
  give_all(idle, blocks);
  const Block block = busy.take(256);
  CHECK(block);
  if (block)
    busy.give(block);
}

TEST_CASE("a closed staging gives nothing out and its protection domain can go") {
  Device device;
  Staging staging(device.world(), device.pd);
  const Block b = staging.take(100);
  staging.give(b);
  staging.close();
  CHECK_FALSE(staging.take(100));
  CHECK(ibv_dealloc_pd(device.pd) == 0);
  device.pd = ibv_alloc_pd(device.context);
}

TEST_CASE("a virtual key is never a live key of the device") {
  const Device device;
  KeyPool pool(device.world(), device.context);
  std::vector<std::byte> memory(4096);
  std::set<uint32_t> live;
  std::vector<ibv_mr*> regions;
  std::vector<std::shared_ptr<Key>> keys;
  for (int i = 0; i < 200; ++i) {
    keys.push_back(take(pool));
    REQUIRE(keys.back());
    regions.push_back(ibv_reg_mr(device.pd, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE));
    REQUIRE(regions.back() != nullptr);
    live.insert(regions.back()->lkey);
    live.insert(regions.back()->rkey);
  }
  std::set<uint32_t> given;
  for (const auto& key : keys) {
    CHECK(live.count(key->value()) == 0);
    CHECK(given.insert(key->value()).second);
    CHECK(pool.owns(key->value()));
  }
  for (ibv_mr* mr : regions)
    ibv_dereg_mr(mr);
  keys.clear();
  pool.close();
}

TEST_CASE("a key given back is met again only after the others, one told to be real never") {
  const Device device;
  KeyPool pool(device.world(), device.context);
  auto a = take(pool);
  auto b = take(pool);
  const uint32_t first = a->value();
  const uint32_t second = b->value();
  a.reset();
  b.reset();
  CHECK(take(pool)->value() == first);
  CHECK(take(pool)->value() == second);

  // What the device would hand out next is told to a peer as real: it must be skipped.
  std::vector<std::shared_ptr<Key>> held{take(pool), take(pool)};
  ibv_pd* pd = ibv_alloc_pd(device.context);
  ibv_mw* next = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
  REQUIRE(next != nullptr);
  pool.told_real(next->rkey);
  const uint32_t real = next->rkey;
  ibv_dealloc_mw(next);
  ibv_dealloc_pd(pd);
  for (int i = 0; i < 300; ++i) {
    held.push_back(take(pool));
    REQUIRE(held.back());
    CHECK(held.back()->value() != real);
  }
  held.clear();
  pool.close();
}

TEST_CASE(
    "a region answers for its bytes, rights and domain only, and for nothing once it is gone") {
  const Device device;
  Regions regions(device.world(), device.context);
  std::vector<std::byte> memory(8192);
  const uint64_t iova = UINT64_MAX - 8191 - 4096; // near the end, where sums wrap
  ibv_mr* mr =
      add_none(regions, device, memory, iova, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  REQUIRE(mr != nullptr);
  const uint32_t key = mr->rkey;
  std::byte* at = nullptr;
  const auto remote = [&](uint64_t address, uint64_t length, unsigned right, const ibv_pd* pd) {
    return regions.remote(pd, key, address, length, right, at);
  };
  constexpr unsigned write = IBV_ACCESS_REMOTE_WRITE;
  CHECK(remote(iova, 8192, write, device.pd) == 0);
  CHECK(at == memory.data());
  CHECK(remote(iova + 8191, 1, write, device.pd) == 0);
  CHECK(remote(iova, 8193, write, device.pd) == ERANGE);
  CHECK(remote(iova - 1, 1, write, device.pd) == ERANGE);
  CHECK(remote(iova + 8192, 1, write, device.pd) == ERANGE);
  CHECK(remote(iova + 1, UINT64_MAX, write, device.pd) == ERANGE);
  CHECK(remote(UINT64_MAX, 2, write, device.pd) == ERANGE);
  CHECK(remote(0, 1, write, device.pd) == ERANGE);
  CHECK(remote(iova, 1, IBV_ACCESS_REMOTE_READ, device.pd) == EACCES);
  CHECK(remote(iova, 1, write, device.other_pd) == ENOENT);
  CHECK(regions.is_reserved(key));
  CHECK(regions.is_virtual(key));
  regions.remove(mr);
  CHECK(remote(iova, 1, write, device.pd) == ENOENT);
  CHECK(regions.is_reserved(key));
  CHECK_FALSE(regions.is_virtual(key));
  regions.close();
}

TEST_CASE("an element whose region died under it is not delivered") {
  const Device device;
  Regions regions(device.world(), device.context);
  Staging staging(device.world(), device.pd);
  std::vector<std::byte> memory(4096);
  ibv_mr* mr = add_none(regions, device, memory, reinterpret_cast<uint64_t>(memory.data()),
                        IBV_ACCESS_LOCAL_WRITE);
  REQUIRE(mr != nullptr);
  ibv_sge sge{reinterpret_cast<uint64_t>(memory.data()), 100, mr->lkey};
  Hold hold;
  REQUIRE(regions.localize_receive(device.pd, staging, 16384, Behind::ask, 1, sge, hold) == 0);
  REQUIRE(hold.block);
  hold.block.data[99] = std::byte{7};
  CHECK(regions.deliver(device.pd, hold, 100));
  CHECK(memory[99] == std::byte{7});
  hold.block.data[99] = std::byte{8};
  regions.remove(mr);
  CHECK_FALSE(regions.deliver(device.pd, hold, 100));
  CHECK(memory[99] == std::byte{7});
  regions.release(staging, hold);
  regions.close();
}
