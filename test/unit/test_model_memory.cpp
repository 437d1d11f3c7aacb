// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What deep queues cost in memory: as much as was ever used of them.
#include "two_programs.h"

#include <atomic>
#include <cstdlib>
#include <new>

using namespace adverb;
using namespace adverb::test;

// Every byte this program has allocated and not freed, with what malloc() adds.
namespace {
std::atomic<int64_t> held{0};
constexpr size_t before = alignof(std::max_align_t);
} // namespace
[[gnu::noinline]] void* operator new(size_t bytes) {
  auto* memory = static_cast<unsigned char*>(malloc(bytes + before));
  if (memory == nullptr)
    throw std::bad_alloc();
  memcpy(memory, &bytes, sizeof bytes);
  held += static_cast<int64_t>(bytes);
  return memory + before;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  if (memory == nullptr)
    return;
  auto* start = static_cast<unsigned char*>(memory) - before;
  size_t bytes = 0;
  memcpy(&bytes, start, sizeof bytes);
  held -= static_cast<int64_t>(bytes);
  free(start);
}
[[gnu::noinline]] void operator delete(void* memory, size_t /*bytes*/) noexcept {
  operator delete(memory);
}

TEST_CASE("a deep queue pair costs what is used of it", "[memory]") {
  const auto cost = [](uint32_t depth, uint32_t elements) {
    const int64_t at_first = held;
    Program::Wanted wanted;
    wanted.cqe = static_cast<int>(2 * depth);
    wanted.cap = {depth, depth, elements, elements, 64};
    const Two two(wanted);
    return held - at_first;
  };
  cost(8, 1); // what is made once
  const int64_t shallow = cost(64, 8);
  CHECK(cost(4096, 8) < shallow + 64 * 1024);
}

TEST_CASE("a ring that grows keeps what is in it", "[memory]") {
  Program::Wanted wanted;
  wanted.cqe = 1024;
  wanted.cap = {300, 300, 2, 2, 64};
  Two two(wanted);
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  for (uint64_t id = 0; id < 300; ++id)
    REQUIRE(b.receive(id, 32768 + 64 * id, 64) == 0);
  // Nothing is issued before the peer has answered, so all of them stand in the ring; some inline.
  for (uint64_t id = 0; id < 300; ++id)
    REQUIRE(a.post(id % 3 == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND, id, 64 * id, 48, b, 64 * id,
                   b.mr->rkey,
                   id % 2 == 0 ? IBV_SEND_SIGNALED : IBV_SEND_SIGNALED | IBV_SEND_INLINE) == 0);
  CHECK(a.post(IBV_WR_SEND, 300, 0, 8, b, 0, 0) == ENOMEM);
  two.settle();
  std::vector<ibv_wc> sent;
  for (int looks = 0; looks < 1000 && sent.size() < 300; ++looks) {
    for (const auto& wc : a.poll())
      sent.push_back(wc);
    two.settle();
  }
  REQUIRE(sent.size() == 300);
  for (uint64_t id = 0; id < 300; ++id) {
    CHECK(sent[id].wr_id == id);
    CHECK(sent[id].status == IBV_WC_SUCCESS);
  }
  std::vector<ibv_wc> got;
  for (int looks = 0; looks < 100 && got.size() < 200; ++looks)
    for (const auto& wc : b.poll())
      got.push_back(wc);
  REQUIRE(got.size() == 200);
  uint64_t receive = 0;
  for (uint64_t id = 0; id < 300; ++id) {
    const bool message = id % 3 != 0;
    const size_t at = message ? 32768 + 64 * receive : 64 * id;
    if (message)
      CHECK(got[receive].wr_id == receive);
    receive += message ? 1 : 0;
    CHECK(memcmp(b.memory.data() + at, a.memory.data() + 64 * id, 48) == 0);
  }
}
