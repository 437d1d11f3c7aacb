// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// gate: yes
// A bit of the bitmap is set after the bytes it stands for, never before. Each page of the buffer
// holds one packet and faults when it is first written; the fault looks at the bit.
#include "reliability_link.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <sys/mman.h>

using namespace reliability_test;

namespace {

constexpr uint32_t page = 4096;
constexpr uint32_t pages_of_chunk = 4;

struct Watch {
  std::byte* begin = nullptr;
  size_t bytes = 0;
  const std::atomic<uint64_t>* bitmap = nullptr;
  uint64_t writes = 0;
  uint64_t early = 0; // writes to a chunk whose bit is set
} watch;

void on_fault(int, siginfo_t* info, void*) {
  auto* const at = static_cast<std::byte*>(info->si_addr);
  if (at < watch.begin || at >= watch.begin + watch.bytes) {
    signal(SIGSEGV, SIG_DFL); // somebody else's: it comes again
    return;
  }
  const size_t number = static_cast<size_t>(at - watch.begin) / page;
  const size_t chunk = number / pages_of_chunk;
  ++watch.writes;
  if ((watch.bitmap[chunk / word_bits].load() >> (chunk % word_bits) & 1) != 0)
    ++watch.early;
  mprotect(watch.begin + number * page, page, PROT_READ | PROT_WRITE);
}

void carry(const Scheme& scheme) {
  constexpr size_t bytes = size_t{256} * page;
  PartyOptions options;
  options.cut = {pages_of_chunk * page, page};
  options.rate.bytes_per_second = 50e6;
  Faults faults;
  faults.loss = 0.05;
  faults.reorder = 0.1;
  faults.duplicate = 0.05;
  Pair pair(options, faults, 1ms, 7);
  std::vector<std::byte> source(bytes, std::byte{7});
  void* const map = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(map != MAP_FAILED);
  const uint64_t number = pair.right->receive(static_cast<std::byte*>(map), bytes);
  REQUIRE(pair.left->send(source.data(), bytes, scheme, 0) == number);
  watch = {static_cast<std::byte*>(map), bytes, pair.right->receiver().bitmap(number), 0, 0};
  struct sigaction action{};
  struct sigaction before{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &before);
  std::optional<ReceiveEvent> end;
  for (int steps = 0; !end && steps < 1'000'000 && pair.step(); ++steps)
    end = pair.right->take_receive_event();
  sigaction(SIGSEGV, &before, nullptr);
  CHECK((end && end->end == End::complete));
  CHECK(watch.writes == bytes / page);
  CHECK(watch.early == 0);
  CHECK(memcmp(map, source.data(), bytes) == 0);
  munmap(map, bytes);
}

} // namespace

TEST_CASE("a bit is set after the bytes of packets that arrived") {
  carry({});
}

TEST_CASE("a bit is set after the bytes that parity gave") {
  carry({.parity = Parity::mds, .k = 8, .m = 3});
}
