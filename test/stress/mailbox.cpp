// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Exactly once: WRITEs into mailboxes whose owner clears each flag as it sees it, so that one which
// is carried out a second time is seen a second time. Of two processes; what has been seen travels
// by memory they share, so nothing but the WRITEs uses the device. Prints TAP.
//
//   mailbox [--seconds N] [--messages N]     until both are over (10 s, 200,000)
#include "../bench/ends.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstring>
#include <memory>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using bench::Device;
using bench::End;
using bench::must;
using Clock = std::chrono::steady_clock;

constexpr unsigned queue_pairs = 4;
constexpr unsigned mailboxes = 32; // of a queue pair
constexpr unsigned outstanding = 16;
constexpr std::chrono::seconds stands_still{60};

struct Shared {
  std::array<std::array<std::atomic<uint64_t>, mailboxes>, queue_pairs> seen; // messages, in each
  std::atomic<uint64_t> wrong;                                                // seen, but not due
  std::atomic<bool> over;
};

struct Told {
  uint32_t qpn;
  uint32_t rkey;
  uint64_t address;
};

// What message `n` of a mailbox says.
uint64_t word(unsigned queue, unsigned box, uint64_t n) {
  return (n + 1) << 16 | queue << 8 | box;
}

// The loopback device has the kernel copy, by a string instruction where the processor is good at
// them, and that may be interrupted within eight bytes: what is not due is looked at for a while
// longer before it is called wrong. What was carried out twice stays what it is.
uint64_t looked_at_again(const uint64_t* flag, uint64_t due) {
  const auto until = Clock::now() + std::chrono::milliseconds(500);
  uint64_t value = 0;
  do
    value = __atomic_load_n(flag, __ATOMIC_ACQUIRE);
  while (value != due && Clock::now() < until);
  return value;
}

void own(std::vector<std::unique_ptr<End>>& ends, Shared& shared) {
  unsigned rounds_left = 1000; // after the end, for what comes late
  while (!shared.over || --rounds_left != 0) {
    for (unsigned q = 0; q < queue_pairs; ++q)
      for (unsigned box = 0; box < mailboxes; ++box) {
        auto* flag = reinterpret_cast<uint64_t*>(ends[q]->memory.data()) + box;
        uint64_t value = __atomic_load_n(flag, __ATOMIC_ACQUIRE);
        if (value == 0)
          continue;
        auto& seen = shared.seen[q][box];
        if (value != word(q, box, seen))
          value = looked_at_again(flag, word(q, box, seen));
        __atomic_store_n(flag, 0, __ATOMIC_RELEASE);
        if (value != word(q, box, seen)) {
          if (shared.wrong++ < 5)
            printf("# mailbox %u of queue pair %u has message %" PRIu64 " where %" PRIu64
                   " is due\n",
                   box, q, (value >> 16) - 1, seen.load());
          continue;
        }
        ++seen;
      }
    if (shared.over)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  fflush(stdout);
}

struct Sender {
  End& end;
  Told peer;
  std::array<uint64_t, mailboxes> sent{};
  unsigned next = 0;
  unsigned under_way = 0;

  bool send(unsigned queue, const Shared& shared) {
    if (under_way == outstanding || shared.seen[queue][next] != sent[next])
      return false;
    auto* from = reinterpret_cast<uint64_t*>(end.memory.data()) + next;
    *from = word(queue, next, sent[next]++);
    ibv_sge sge{reinterpret_cast<uintptr_t>(from), sizeof *from, end.mr->lkey};
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {peer.address + next * sizeof *from, peer.rkey};
    ibv_send_wr* bad = nullptr;
    must(ibv_post_send(end.qp, &wr, &bad) == 0, "ibv_post_send");
    next = (next + 1) % mailboxes;
    ++under_way;
    return true;
  }
  // False: a WRITE has failed.
  bool take(bool& any) {
    ibv_wc wc{};
    const int n = ibv_poll_cq(end.cq, 1, &wc);
    must(n >= 0, "ibv_poll_cq");
    any |= n != 0;
    under_way -= static_cast<unsigned>(n);
    if (n == 0 || wc.status == IBV_WC_SUCCESS)
      return true;
    printf("# a WRITE completes with %s\n", ibv_wc_status_str(wc.status));
    return false;
  }
};

// How many messages; 0: not all went well.
uint64_t fill(std::vector<Sender>& senders, const Shared& shared, std::chrono::seconds time,
              uint64_t messages) {
  uint64_t sent = 0;
  const auto end = Clock::now() + time;
  auto moved = Clock::now();
  for (bool more = true, busy = true; more || busy;) {
    more = sent < messages || Clock::now() < end;
    busy = false;
    bool any = false;
    for (unsigned q = 0; q < queue_pairs; ++q) {
      if (more && senders[q].send(q, shared)) {
        ++sent;
        any = true;
      }
      if (!senders[q].take(any))
        return 0;
      busy |= senders[q].under_way != 0;
    }
    if (any)
      moved = Clock::now();
    if (Clock::now() - moved > stands_still) {
      printf("# nothing has moved for a minute\n");
      return 0;
    }
  }
  return sent;
}

} // namespace

int main(int argc, char** argv) {
  std::chrono::seconds time{10};
  uint64_t messages = 200'000;
  for (int i = 1; i + 1 < argc; i += 2)
    if (strcmp(argv[i], "--seconds") == 0)
      time = std::chrono::seconds(atoi(argv[i + 1]));
    else if (strcmp(argv[i], "--messages") == 0)
      messages = strtoull(argv[i + 1], nullptr, 0);
  auto* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  must(memory != MAP_FAILED, "mmap");
  Shared& shared = *new (memory) Shared{};
  std::array<int, 2> sockets{};
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()) == 0, "socketpair");
  const pid_t child = fork();
  const bool owner = child == 0;
  const int socket = sockets[owner ? 1 : 0];
  close(sockets[owner ? 0 : 1]);
  Device device;
  std::vector<std::unique_ptr<End>> ends;
  std::vector<Sender> senders;
  for (unsigned q = 0; q < queue_pairs; ++q) {
    End& end = *ends.emplace_back(std::make_unique<End>(device, 2 * outstanding, 4096));
    const Told mine{end.qp->qp_num, end.mr->rkey, reinterpret_cast<uintptr_t>(end.memory.data())};
    Told theirs{};
    must(write(socket, &mine, sizeof mine) == sizeof mine &&
             read(socket, &theirs, sizeof theirs) == sizeof theirs,
         "the other process");
    end.connect(device, theirs.qpn);
    senders.push_back({end, theirs});
  }
  char ready = 'r';
  must(write(socket, &ready, 1) == 1 && read(socket, &ready, 1) == 1, "the other process");
  if (owner) {
    own(ends, shared);
    return 0;
  }
  const uint64_t sent = fill(senders, shared, time, messages);
  shared.over = true;
  int status = 0;
  must(waitpid(child, &status, 0) == child && status == 0, "the other process");
  uint64_t seen = 0;
  for (const auto& of_queue : shared.seen)
    for (const auto& n : of_queue)
      seen += n;
  const bool good = sent != 0 && seen == sent && shared.wrong == 0;
  printf("# %" PRIu64 " messages, %" PRIu64 " seen when due, %" PRIu64 " else\n", sent, seen,
         shared.wrong.load());
  printf("%s - each message in a mailbox is seen, and once\n", good ? "ok" : "not ok");
  return good ? 0 : 1;
}
