// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// adverb's own heap: blocks are apart and stay as they are, whoever frees them, and a fork child
// has one whatever its parent's threads were at.
#include "catch.h"
#include "interpose/heap.h"

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <memory>
#include <random>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

using adverb::interpose::Heap;

struct Block {
  unsigned char* at = nullptr;
  size_t bytes = 0;
  unsigned char value = 0;
};

bool is_whole(const Block& block) {
  for (size_t i = 0; i < block.bytes; ++i)
    if (block.at[i] != block.value)
      return false;
  return true;
}

// Small ones above all, some at the border of what is pooled, few that are large.
size_t some_size(std::mt19937& random) {
  switch (random() % 16) {
  case 0:
    return (32 << 10) - 64 + random() % 128;
  case 1:
    return random() % (256 << 10);
  default:
    return random() % 512;
  }
}

Block make(Heap& heap, std::mt19937& random) {
  const size_t bytes = some_size(random);
  const size_t alignment = size_t{1} << (random() % 13);
  Block block{static_cast<unsigned char*>(heap.allocate(bytes, alignment)), bytes,
              static_cast<unsigned char>(random())};
  REQUIRE(block.at != nullptr);
  REQUIRE(reinterpret_cast<uintptr_t>(block.at) % std::max<size_t>(alignment, 16) == 0);
  memset(block.at, block.value, bytes);
  return block;
}

TEST_CASE("heap: blocks of all sizes and alignments are apart, and stay as they are") {
  const auto heap = std::make_unique<Heap>();
  std::mt19937 random(1);
  std::vector<Block> blocks;
  bool whole = true;
  for (int turn = 0; turn < 20'000; ++turn) {
    if (blocks.size() < 200 || random() % 2 == 0) {
      blocks.push_back(make(*heap, random));
      continue;
    }
    std::swap(blocks[random() % blocks.size()], blocks.back());
    whole &= is_whole(blocks.back());
    heap->free(blocks.back().at);
    blocks.pop_back();
  }
  for (const Block& block : blocks) {
    whole &= is_whole(block);
    heap->free(block.at);
  }
  CHECK(whole);
  heap->free(nullptr);
  CHECK(heap->allocate(SIZE_MAX, 16) == nullptr);
  CHECK(heap->allocate(SIZE_MAX - 100, 64) == nullptr);
  CHECK(heap->allocate(PTRDIFF_MAX - 4096, 16) == nullptr);
}

TEST_CASE("heap: what is freed is had again, so that it does not grow for ever") {
  const auto heap = std::make_unique<Heap>();
  std::array<void*, 64> first{};
  for (auto& block : first)
    block = heap->allocate(100, 16);
  std::vector<void*> seen(first.begin(), first.end());
  for (int turn = 0; turn < 1000; ++turn) {
    for (auto& block : first)
      heap->free(block);
    for (auto& block : first) {
      block = heap->allocate(100, 16);
      if (std::ranges::find(seen, block) == seen.end())
        seen.push_back(block);
    }
  }
  CHECK(seen.size() <= 2 * first.size());
}

TEST_CASE("heap: one thread frees what another has") {
  const auto heap = std::make_unique<Heap>();
  constexpr int threads = 4;
  constexpr int turns = 5000;
  std::array<std::atomic<unsigned char*>, 64> places{};
  std::atomic<int> torn{0};
  std::vector<std::thread> all;
  for (int n = 0; n < threads; ++n)
    all.emplace_back([&, n] {
      std::mt19937 random(static_cast<unsigned>(n));
      for (int turn = 0; turn < turns; ++turn) {
        // Its first byte says how long it is, and what the others are.
        const auto bytes = static_cast<unsigned char>(1 + random() % 200);
        auto* const mine = static_cast<unsigned char*>(heap->allocate(bytes, 8));
        memset(mine, bytes, bytes);
        unsigned char* const other = places[random() % places.size()].exchange(mine);
        if (other != nullptr && !is_whole({other, *other, *other}))
          ++torn;
        heap->free(other);
      }
    });
  for (auto& thread : all)
    thread.join();
  for (auto& place : places)
    heap->free(place);
  CHECK(torn == 0);
}

// Threads of the parent are in the midst of it when it forks, again and again.
TEST_CASE("heap: a fork child has one, whatever its parent's threads were at") {
  const auto heap = std::make_unique<Heap>();
  std::atomic<bool> stop{false};
  void* const before = heap->allocate(100, 16);
  std::vector<std::thread> busy;
  for (int n = 0; n < 2; ++n)
    busy.emplace_back([&] {
      while (!stop)
        heap->free(heap->allocate(64, 16));
    });
  int well = 0;
  constexpr int children = 100;
  for (int n = 0; n < children; ++n) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      alarm(20); // else it would wait for ever
      heap->in_child();
      heap->free(before);
      for (int turn = 0; turn < 100; ++turn) {
        void* const block = heap->allocate(64, 16);
        memset(block, turn, 64);
        heap->free(block);
      }
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    well += WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 1 : 0;
  }
  stop = true;
  for (auto& thread : busy)
    thread.join();
  heap->free(before);
  CHECK(well == children);
}

} // namespace
