// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// An ordinary verbs program that registers and deregisters memory, on the first device.
//
//   bench_registration MAPPINGS ROUNDS [BYTES...]
//
// It has MAPPINGS mappings beside those of its libraries and of what it registers. For each number
// of BYTES, memory that is there and memory that nobody has touched: prints
// "BYTES resident|absent REGISTER DEREGISTER", microseconds, the medians of ROUNDS. What cannot be
// registered at all is left out.
#include "ends.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <vector>

namespace {

using bench::must;
using Clock = std::chrono::steady_clock;

constexpr size_t page = 4096;

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

double median(std::vector<double>& values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

template <typename Call> double took(Call&& call) {
  const auto start = Clock::now();
  call();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Whether it can be registered.
bool measure(bench::Device& device, size_t bytes, bool resident, int rounds) {
  std::vector<double> registered, deregistered;
  for (int i = 0; i < rounds; ++i) {
    char* const memory = mapped(bytes);
    if (resident)
      memset(memory, 1, bytes);
    ibv_mr* mr = nullptr;
    registered.push_back(took([&] { mr = ibv_reg_mr(device.pd, memory, bytes, bench::rights); }));
    if (mr == nullptr)
      return false;
    deregistered.push_back(took([&] { must(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr"); }));
    must(munmap(memory, bytes) == 0, "munmap");
  }
  printf("%zu %s %.2f %.2f\n", bytes, resident ? "resident" : "absent", median(registered),
         median(deregistered));
  return true;
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fputs("usage: bench_registration MAPPINGS ROUNDS BYTES...\n", stderr);
    return 2;
  }
  bench::Device device;
  make_mappings(strtoull(argv[1], nullptr, 0));
  const int rounds = atoi(argv[2]);
  constexpr size_t too_much = size_t{4} << 30; // to be touched
  // What the first one alone costs.
  must(ibv_dereg_mr(ibv_reg_mr(device.pd, mapped(page), page, bench::rights)) == 0, "ibv_reg_mr");
  for (int i = 3; i < argc; ++i) {
    const size_t bytes = strtoull(argv[i], nullptr, 0);
    if (bytes < too_much)
      measure(device, bytes, true, rounds);
    measure(device, bytes, false, rounds);
  }
  return 0;
}
