// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "queue/way_trace.h"

#include "catch.h"

#include <vector>

using adverb::observe::Trace;
using adverb::observe::TraceEvent;
using adverb::observe::TraceKind;
using adverb::queue::WayTrace;
using adverb::steering::Reason;

namespace {

adverb::SteadyClock steady;

struct Ring {
  Trace trace{steady};
  WayTrace ways;

  void note(ibv_wr_opcode opcode, uint64_t length, uint32_t key, size_t row,
            Reason reason = Reason::virtual_key) {
    ways.note(trace, 5, {static_cast<uint8_t>(opcode), length, key}, row, reason);
  }
  std::vector<TraceEvent> events() const {
    std::vector<TraceEvent> all;
    for (const auto& slot : trace.ring().slots) {
      TraceEvent event;
      uint64_t number = 0;
      if (read_event(slot, event, number))
        all.push_back(event);
    }
    return all;
  }
};

} // namespace

TEST_CASE("the first way of a shape is told once, and so is another one") {
  Ring ring;
  for (int i = 0; i < 100; ++i)
    ring.note(IBV_WR_RDMA_READ, 64, 0x100, 3);
  ring.note(IBV_WR_RDMA_READ, 127, 0x100, 3); // the same shape
  REQUIRE(ring.events().size() == 1);
  const TraceEvent first = ring.events()[0];
  CHECK(first.kind == TraceKind::way);
  CHECK(first.qpn == 5);
  CHECK(first.first == IBV_WR_RDMA_READ);
  CHECK(first.second == 3);
  CHECK(first.reason == static_cast<uint8_t>(Reason::virtual_key));
  CHECK(first.key == 0x100);
  CHECK(first.bytes == 64);
  CHECK(first.address == 1);
  ring.note(IBV_WR_RDMA_READ, 64, 0x100, 1);
  REQUIRE(ring.events().size() == 2);
  CHECK(ring.events()[1].second == 1);
  CHECK(ring.events()[1].address == 2);
  ring.note(IBV_WR_RDMA_READ, 64, 0x100, 1, Reason::real_key); // for another reason
  ring.ways.clear();
  ring.note(IBV_WR_RDMA_READ, 64, 0x100, 1, Reason::real_key); // of another peer
  REQUIRE(ring.events().size() == 4);
  CHECK(ring.events()[2].address == 3);
  CHECK(ring.events()[3].address == 1);
}

TEST_CASE("requests that change between two ways are told of seldom") {
  Ring ring;
  for (uint32_t i = 0; i < 1024; ++i)
    ring.note(IBV_WR_RDMA_WRITE, 8, 1, i % 2);
  CHECK(ring.events().size() == 15); // 1 to 8, 16 ... 1024
  CHECK(ring.events().back().address == 1024);
}

TEST_CASE("of many shapes as many are told as there is room for, each once") {
  Ring ring;
  for (int round = 0; round < 3; ++round)
    for (uint32_t key = 0; key < 100; ++key)
      ring.note(IBV_WR_RDMA_WRITE, 8, key << 8, 3);
  const size_t told = ring.events().size();
  CHECK(told <= 16);
  CHECK(told >= 8);
}
