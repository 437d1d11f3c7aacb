// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// An ordinary verbs program that registers and deregisters memory, on the first device.
//
//   bench_registration MAPPINGS ROUNDS [BYTES...]
//
// It has MAPPINGS mappings beside those of its libraries and of what it registers. For each number
// of BYTES, memory that is there and memory that nobody has touched, each time newly mapped: prints
// "BYTES resident|absent REGISTER DEREGISTER", nanoseconds, for each of ROUNDS, of long ones fewer.
// What cannot be registered at all is left out.
// First of all prints "loop INSTRUCTIONS NANOSECONDS", what so many instructions take, several
// times. What reading the clock takes has been taken off everywhere.
#include "ends.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <sys/mman.h>

namespace {

using bench::must;

constexpr size_t page = 4096;

uint64_t now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (static_cast<uint64_t>(t.tv_sec) * 1'000'000'000) + static_cast<uint64_t>(t.tv_nsec);
}

template <typename Call> uint64_t took(Call&& call) {
  const uint64_t start = now();
  call();
  return now() - start;
}

// Of nothing at all.
uint64_t clock_itself() {
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < 1000; ++i)
    least = std::min(least, took([] {}));
  return least;
}

// Two instructions a turn.
void run_instructions(uint64_t count) {
  uint64_t turns = count / 2;
  asm volatile("1: dec %0\n\tjnz 1b" : "+r"(turns) : : "cc");
}

char* mapped(size_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  must(at != MAP_FAILED, "mmap");
  return static_cast<char*>(at);
}

// Pages of one mapping with other rights in turn are a mapping each.
void make_mappings(size_t count) {
  char* const at = mapped((count + 1) * page);
  for (size_t i = 0; i < count; i += 2)
    must(mprotect(at + (i * page), page, PROT_READ) == 0, "mprotect");
}

// To touch, or to pin, much takes long under emulation.
int rounds_of(size_t bytes, int rounds) {
  if (bytes >= size_t{4} << 30) // is not touched
    return rounds;
  return bytes >= size_t{256} << 20 ? 3 : bytes >= size_t{16} << 20 ? 5 : rounds;
}

void measure(bench::Device& device, size_t bytes, bool resident, int rounds, uint64_t clock) {
  for (int i = 0; i < rounds_of(bytes, rounds); ++i) {
    char* const memory = mapped(bytes);
    for (size_t at = 0; resident && at < bytes; at += page)
      memory[at] = 1;
    ibv_mr* mr = nullptr;
    const uint64_t registered =
        took([&] { mr = ibv_reg_mr(device.pd, memory, bytes, bench::rights); });
    if (mr == nullptr)
      return;
    const uint64_t deregistered = took([&] { must(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr"); });
    must(munmap(memory, bytes) == 0, "munmap");
    printf("%zu %s %lu %lu\n", bytes, resident ? "resident" : "absent", registered - clock,
           deregistered - clock);
  }
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fputs("usage: bench_registration MAPPINGS ROUNDS BYTES...\n", stderr);
    return 2;
  }
  const uint64_t clock = clock_itself();
  constexpr uint64_t instructions = 100'000;
  for (int i = 0; i < 15; ++i)
    printf("loop %lu %lu\n", instructions, took([] { run_instructions(instructions); }) - clock);
  bench::Device device;
  make_mappings(strtoull(argv[1], nullptr, 0));
  const int rounds = atoi(argv[2]);
  constexpr size_t too_much = size_t{4} << 30; // to be touched
  // What the first one alone costs.
  must(ibv_dereg_mr(ibv_reg_mr(device.pd, mapped(page), page, bench::rights)) == 0, "ibv_reg_mr");
  for (int i = 3; i < argc; ++i) {
    const size_t bytes = strtoull(argv[i], nullptr, 0);
    if (bytes < too_much)
      measure(device, bytes, true, rounds, clock);
    measure(device, bytes, false, rounds, clock);
  }
  return 0;
}
