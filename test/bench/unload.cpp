// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// An ordinary verbs program of two processes: how long requests take that the peer's process has no
// part in, and a message and its answer, which both poll for.
//
//   bench_unload read|write|message BYTES OUTSTANDING COUNT [polls|lists]
//   bench_unload idle SECONDS
//
// Prints the median and the mean of nanoseconds per request, and of both processes together, per
// request: CPU nanoseconds and times that a thread of theirs went to sleep. `polls`: the peer polls
// its completion queue all the time. `lists`: as many as may be outstanding are posted by one call,
// when those before are complete. `idle`: that sleep, a second, of two processes that have
// exchanged requests before.
#include "ends.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using bench::Device;
using bench::End;
using bench::exchange;
using bench::must;
using Clock = std::chrono::steady_clock;

constexpr uint32_t depth = 128;

struct Wanted {
  ibv_wr_opcode opcode;
  uint32_t bytes;
  uint64_t outstanding;
  uint64_t count;
  bool polls;
  bool lists;
  int idle; // milliseconds
};

struct Told {
  uint32_t qpn;
  uint32_t rkey;
  uint64_t address;
};

struct Used {
  double cpu = 0; // nanoseconds
  double sleeps = 0;
};
Used used() {
  rusage r{};
  getrusage(RUSAGE_SELF, &r);
  const auto ns = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_usec) * 1e3;
  };
  return {ns(r.ru_utime) + ns(r.ru_stime), static_cast<double>(r.ru_nvcsw)};
}

void receive(End& end, uint32_t bytes) {
  ibv_sge sge{reinterpret_cast<uintptr_t>(end.memory.data()), bytes, end.mr->lkey};
  ibv_recv_wr wr{0, nullptr, &sge, 1};
  ibv_recv_wr* bad = nullptr;
  must(ibv_post_recv(end.qp, &wr, &bad) == 0, "ibv_post_recv");
}

// `count` of them by one call, from `id` on.
void post(End& end, const Wanted& wanted, const Told& peer, uint64_t id, uint64_t count = 1) {
  ibv_sge sge{reinterpret_cast<uintptr_t>(end.memory.data()), wanted.bytes, end.mr->lkey};
  ibv_send_wr list[depth]{};
  for (uint64_t i = 0; i < count; ++i) {
    ibv_send_wr& wr = list[i];
    wr.wr_id = id + i;
    wr.next = i + 1 < count ? &list[i + 1] : nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = wanted.opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {peer.address, peer.rkey};
  }
  ibv_send_wr* bad = nullptr;
  must(ibv_post_send(end.qp, list, &bad) == 0, "ibv_post_send");
}

// One completion of that opcode; what else comes is counted by the caller's next call.
void await(End& end, unsigned& sends, unsigned& receives, bool receiving) {
  unsigned& wanted = receiving ? receives : sends;
  while (wanted == 0) {
    ibv_wc wc{};
    const int n = ibv_poll_cq(end.cq, 1, &wc);
    must(n >= 0 && (n == 0 || wc.status == IBV_WC_SUCCESS), "a completion");
    if (n != 0)
      ++((wc.opcode & IBV_WC_RECV) != 0 ? receives : sends);
  }
  --wanted;
}

// Answers each message; else does nothing, or polls, until the socket ends.
void serve(End& end, const Wanted& wanted, const Told& peer, int socket, uint64_t messages) {
  unsigned sends = 0, receives = 0;
  if (wanted.opcode == IBV_WR_SEND)
    for (uint64_t i = 0; i < messages; ++i) {
      await(end, sends, receives, true);
      receive(end, wanted.bytes);
      post(end, wanted, peer, i);
      await(end, sends, receives, false);
    }
  pollfd over{socket, POLLIN, 0};
  for (uint64_t i = 0; wanted.polls; ++i) {
    ibv_wc wc{};
    must(ibv_poll_cq(end.cq, 1, &wc) == 0, "ibv_poll_cq");
    if (i % 4096 == 0 && poll(&over, 1, 0) != 0)
      return;
  }
  poll(&over, 1, -1);
}

double ask(End& end, const Wanted& wanted, const Told& peer, uint64_t count,
           std::vector<double>& times) {
  unsigned sends = 0, receives = 0;
  uint64_t posted = 0;
  const auto start = Clock::now();
  for (uint64_t done = 0; done < count; ++done) {
    const auto began = Clock::now();
    if (wanted.lists && posted == done) {
      const uint64_t most = std::min(wanted.outstanding, count - done);
      post(end, wanted, peer, posted, most);
      posted += most;
    }
    for (; !wanted.lists && posted < count && posted - done < wanted.outstanding; ++posted)
      post(end, wanted, peer, posted);
    await(end, sends, receives, false);
    if (wanted.opcode == IBV_WR_SEND) {
      await(end, sends, receives, true);
      receive(end, wanted.bytes);
    }
    times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - began).count());
  }
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

} // namespace

int main(int argc, char** argv) {
  Wanted wanted{};
  const bool idle = argc == 3 && strcmp(argv[1], "idle") == 0;
  if (!idle && (argc < 5 || argc > 6)) {
    fputs("usage: bench_unload read|write|message BYTES OUTSTANDING COUNT [polls|lists]\n"
          "       bench_unload idle SECONDS\n",
          stderr);
    return 2;
  }
  wanted.opcode = strcmp(argv[1], "read") == 0    ? IBV_WR_RDMA_READ
                  : strcmp(argv[1], "write") == 0 ? IBV_WR_RDMA_WRITE
                                                  : IBV_WR_SEND;
  wanted.bytes = idle ? 8 : static_cast<uint32_t>(strtoul(argv[2], nullptr, 0));
  wanted.outstanding = idle ? 1 : strtoull(argv[3], nullptr, 0);
  wanted.count = idle ? 0 : strtoull(argv[4], nullptr, 0);
  wanted.polls = argc == 6 && strcmp(argv[5], "polls") == 0;
  wanted.lists = argc == 6 && strcmp(argv[5], "lists") == 0;
  wanted.idle = idle ? 1000 * atoi(argv[2]) : 0;
  must(wanted.outstanding <= depth, "OUTSTANDING");
  const uint64_t warm = idle ? 1000 : wanted.count / 4 + 1; // peers find each other
  int sockets[2];
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  const pid_t child = fork();
  const bool owner = child == 0;
  const int socket = sockets[owner ? 1 : 0];
  close(sockets[owner ? 0 : 1]);
  Device device;
  End end(device, depth, std::max<size_t>(wanted.bytes, 4096));
  const Told peer = exchange(
      socket, Told{end.qp->qp_num, end.mr->rkey, reinterpret_cast<uintptr_t>(end.memory.data())});
  end.connect(device, peer.qpn);
  receive(end, wanted.bytes);
  exchange(socket, 'c');
  std::vector<double> times;
  times.reserve(warm + wanted.count);
  double whole = 0;
  Used before{}, after{};
  for (const uint64_t count : {warm, wanted.count}) {
    if (count == 0)
      poll(nullptr, 0, 100); // what has been going on comes to rest
    if (count == 0 && !owner)
      fputs("idle\n", stderr); // for who is to stop them: no lock of the device is held
    before = used();
    if (count == 0)
      poll(nullptr, 0, wanted.idle);
    times.clear();
    if (owner) {
      serve(end, wanted, peer, socket, count);
    } else {
      whole = ask(end, wanted, peer, count, times);
    }
    after = used();
    exchange(socket, 'r');
  }
  const Used mine{after.cpu - before.cpu, after.sleeps - before.sleeps};
  const Used theirs = exchange(socket, mine);
  if (owner)
    return 0;
  if (idle) // each has slept once itself
    return printf("%.2f\n", (mine.sleeps + theirs.sleeps - 2) * 1000 / wanted.idle) > 0 ? 0 : 1;
  std::nth_element(times.begin(), times.begin() + static_cast<ptrdiff_t>(times.size() / 2),
                   times.end());
  const auto n = static_cast<double>(wanted.count);
  printf("%.1f %.1f %.1f %.3f\n", times[times.size() / 2], whole / n, (mine.cpu + theirs.cpu) / n,
         (mine.sleeps + theirs.sleeps) / n);
  int status = 0;
  must(waitpid(child, &status, 0) == child && status == 0, "the other process");
  return 0; // objects go with the process
}
