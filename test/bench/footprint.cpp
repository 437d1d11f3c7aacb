// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// An ordinary verbs program that registers more than it uses, on the first device.
//
//   bench_footprint receives COUNT BYTES
//   bench_footprint first BYTES START
//
// `receives`: has COUNT receives posted at once, of BYTES each, side by side in one region, and
// receives into all of them from a queue pair of its own. Prints "posted", VmPin, VmLck and VmRSS
// in KiB when they are posted, waits for a line, and prints "peak" and the largest there were until
// all have completed. `first`: registers BYTES that nobody has touched, of more memory than there
// may be, and sends itself one byte out of their middle. Prints the nanoseconds since START, by
// CLOCK_REALTIME, until that has come, and the three.
#include "ends.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <sys/mman.h>

namespace {

constexpr int local_write = IBV_ACCESS_LOCAL_WRITE;

using bench::Device;
using bench::End;
using bench::must;

struct Memory {
  std::array<uint64_t, 3> kib{}; // pinned, locked, resident
  void print(const char* what) const {
    printf("%s %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", what, kib[0], kib[1], kib[2]);
    fflush(stdout);
  }
};

Memory memory_now() {
  constexpr std::array<const char*, 3> names{"VmPin:", "VmLck:", "VmRSS:"};
  FILE* const file = fopen("/proc/self/status", "re");
  must(file != nullptr, "/proc/self/status");
  Memory now;
  char line[256];
  while (fgets(line, sizeof line, file) != nullptr)
    for (size_t i = 0; i < names.size(); ++i)
      if (strncmp(line, names[i], strlen(names[i])) == 0)
        now.kib[i] = strtoull(line + strlen(names[i]), nullptr, 10);
  fclose(file);
  return now;
}

char* mapped(size_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  must(at != MAP_FAILED, "mmap");
  return static_cast<char*>(at);
}

void post_receive(End& end, const ibv_mr& mr, char* at, uint32_t bytes) {
  ibv_sge sge{reinterpret_cast<uintptr_t>(at), bytes, mr.lkey};
  ibv_recv_wr wr{}, *bad = nullptr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  must(ibv_post_recv(end.qp, &wr, &bad) == 0, "ibv_post_recv");
}

void post_send(End& end, const ibv_mr& mr, char* at, uint32_t bytes) {
  ibv_sge sge{reinterpret_cast<uintptr_t>(at), bytes, mr.lkey};
  ibv_send_wr wr{}, *bad = nullptr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  must(ibv_post_send(end.qp, &wr, &bad) == 0, "ibv_post_send");
}

// How many have completed, at most 16.
uint32_t poll(End& end) {
  ibv_wc wc[16];
  const int n = ibv_poll_cq(end.cq, 16, wc);
  must(n >= 0, "ibv_poll_cq");
  for (int i = 0; i < n; ++i)
    must(wc[i].status == IBV_WC_SUCCESS, "a completion");
  return static_cast<uint32_t>(n);
}

struct Ends {
  Device& device;
  End sender;
  End receiver;
  Ends(Device& of, uint32_t depth) : device(of), sender(of, 16), receiver(of, depth) {
    sender.connect(device, receiver.qp->qp_num);
    receiver.connect(device, sender.qp->qp_num);
  }
};

void receives(uint32_t count, uint32_t bytes) {
  Device device;
  char* const memory = mapped(size_t{count} * bytes);
  ibv_mr* const mr = ibv_reg_mr(device.pd, memory, size_t{count} * bytes, local_write);
  must(mr != nullptr, "ibv_reg_mr");
  Ends ends(device, count);
  for (uint32_t i = 0; i < count; ++i)
    post_receive(ends.receiver, *mr, memory + (size_t{i} * bytes), bytes);
  Memory peak = memory_now();
  peak.print("posted");
  must(getchar() != EOF, "who asks");
  uint32_t sent = 0, received = 0, acknowledged = 0;
  while (received < count || acknowledged < count) {
    for (; sent < count && sent - acknowledged < 16; ++sent)
      post_send(ends.sender, *ends.sender.mr, ends.sender.memory.data(), bytes);
    acknowledged += poll(ends.sender);
    const uint32_t more = poll(ends.receiver);
    received += more;
    if (more == 0)
      continue;
    const Memory now = memory_now();
    for (size_t i = 0; i < now.kib.size(); ++i)
      peak.kib[i] = std::max(peak.kib[i], now.kib[i]);
  }
  peak.print("peak");
}

void first(size_t bytes, uint64_t start) {
  Device device;
  char* const memory = mapped(bytes);
  ibv_mr* const mr = ibv_reg_mr(device.pd, memory, bytes, local_write);
  must(mr != nullptr, "ibv_reg_mr");
  Ends ends(device, 16);
  char* const middle = memory + (bytes / 2);
  post_receive(ends.receiver, *mr, middle + 4096, 1);
  *middle = 42;
  post_send(ends.sender, *mr, middle, 1);
  while (poll(ends.receiver) == 0)
    ;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  must(middle[4096] == 42, "the byte");
  const uint64_t took = (static_cast<uint64_t>(now.tv_sec) * 1'000'000'000) +
                        static_cast<uint64_t>(now.tv_nsec) - start;
  char text[32];
  snprintf(text, sizeof text, "%" PRIu64, took);
  memory_now().print(text);
}

} // namespace

int main(int argc, char** argv) {
  if (argc == 4 && strcmp(argv[1], "receives") == 0) {
    receives(static_cast<uint32_t>(atoi(argv[2])), static_cast<uint32_t>(atoi(argv[3])));
  } else if (argc == 4 && strcmp(argv[1], "first") == 0) {
    first(strtoull(argv[2], nullptr, 0), strtoull(argv[3], nullptr, 0));
  } else {
    fputs("usage: bench_footprint receives COUNT BYTES | first BYTES START\n", stderr);
    return 2;
  }
  return 0;
}
