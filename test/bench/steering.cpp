// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// An ordinary verbs program of two processes: WRITEs to pages of the peer, of which some are hot.
//
//   bench_steering BYTES LIST PAGES HOT_PAGES HOT_PERCENT COUNT [send]
//
// LIST requests are posted by one call when those before are complete. Each goes to a page by
// chance: in HOT_PERCENT of 100 to one of the first HOT_PAGES, otherwise to any of PAGES. With
// `send`, a SEND of one byte ends each list. Prints the mean of nanoseconds per WRITE, after a
// warm-up of as many.
#include "ends.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <poll.h>
#include <string_view>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using bench::Device;
using bench::End;
using bench::exchange;
using bench::must;
using Clock = std::chrono::steady_clock;

constexpr uint32_t list_most = 128;
constexpr uint64_t page = 4096;

struct Wanted {
  uint32_t bytes;
  uint32_t list;
  uint64_t pages;
  uint64_t hot_pages;
  uint64_t hot_percent;
  uint64_t count;
  bool sends;
};

struct Told {
  uint32_t qpn;
  uint32_t rkey;
  uint64_t address;
};

class Program {
public:
  Program(End& end, const Wanted& wanted, const Told& peer)
      : end_(end), wanted_(wanted), peer_(peer) {}

  // Nanoseconds of so many.
  double run(uint64_t count) {
    const auto start = Clock::now();
    for (uint64_t done = 0; done < count; done += wanted_.list) {
      post();
      for (uint32_t left = wanted_.list + (wanted_.sends ? 1 : 0); left != 0;)
        left -= taken();
    }
    return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  }

private:
  uint64_t chance(uint64_t below) { // xorshift
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return random_ % below;
  }
  uint64_t target() {
    const uint64_t pages = chance(100) < wanted_.hot_percent ? wanted_.hot_pages : wanted_.pages;
    return peer_.address + chance(pages) * page;
  }
  void post() {
    ibv_sge sge{reinterpret_cast<uintptr_t>(end_.memory.data()), wanted_.bytes, end_.mr->lkey};
    ibv_send_wr list[list_most + 1]{};
    ibv_sge byte{sge.addr, 1, sge.lkey};
    if (wanted_.sends) {
      ibv_send_wr& last = list[wanted_.list];
      last.sg_list = &byte;
      last.num_sge = 1;
      last.opcode = IBV_WR_SEND;
      last.send_flags = IBV_SEND_SIGNALED;
    }
    for (uint32_t i = 0; i < wanted_.list; ++i) {
      list[i].next = i + 1 < wanted_.list || wanted_.sends ? &list[i + 1] : nullptr;
      list[i].sg_list = &sge;
      list[i].num_sge = 1;
      list[i].opcode = IBV_WR_RDMA_WRITE;
      list[i].send_flags = IBV_SEND_SIGNALED;
      list[i].wr.rdma = {target(), peer_.rkey};
    }
    ibv_send_wr* bad = nullptr;
    must(ibv_post_send(end_.qp, list, &bad) == 0, "ibv_post_send");
  }
  uint32_t taken() {
    ibv_wc wcs[16];
    const int n = ibv_poll_cq(end_.cq, 16, wcs);
    for (int i = 0; i < n; ++i)
      must(wcs[i].status == IBV_WC_SUCCESS, "a completion");
    must(n >= 0, "ibv_poll_cq");
    return static_cast<uint32_t>(n);
  }

  End& end_;
  const Wanted wanted_;
  const Told peer_;
  uint64_t random_ = 88172645463325252;
};

void post_receive(End& end) {
  ibv_sge sge{reinterpret_cast<uintptr_t>(end.memory.data()), 1, end.mr->lkey};
  ibv_recv_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  must(ibv_post_recv(end.qp, &wr, &bad) == 0, "ibv_post_recv");
}

// Until the other end says that it is over.
void take_sends(End& end, int socket) {
  pollfd over{socket, POLLIN, 0};
  for (uint32_t empty = 0;;) {
    ibv_wc wcs[16];
    const int n = ibv_poll_cq(end.cq, 16, wcs);
    must(n >= 0, "ibv_poll_cq");
    for (int i = 0; i < n; ++i) {
      must(wcs[i].status == IBV_WC_SUCCESS, "a receive");
      post_receive(end);
    }
    if (n != 0)
      empty = 0;
    else if (++empty % 1024 == 0 && poll(&over, 1, 0) != 0)
      return;
  }
}

} // namespace

int main(int argc, char** argv) {
  uint64_t words[6] = {};
  for (int i = 0; i < 6 && i + 1 < argc; ++i)
    words[i] = strtoull(argv[i + 1], nullptr, 0);
  const bool sends = argc == 8 && std::string_view(argv[7]) == "send";
  if (argc != (sends ? 8 : 7) || words[1] == 0 || words[1] > list_most || words[2] == 0 ||
      words[3] == 0) {
    fputs("usage: bench_steering BYTES LIST PAGES HOT_PAGES HOT_PERCENT COUNT [send]\n", stderr);
    return 2;
  }
  const Wanted wanted{static_cast<uint32_t>(words[0]),
                      static_cast<uint32_t>(words[1]),
                      words[2],
                      words[3],
                      words[4],
                      words[5],
                      sends};
  int sockets[2];
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  const pid_t child = fork();
  const bool owner = child == 0;
  const int socket = sockets[owner ? 1 : 0];
  close(sockets[owner ? 0 : 1]);
  Device device;
  End end(device, list_most + 1, owner ? std::max(wanted.pages, wanted.hot_pages) * page : page);
  const Told peer = exchange(
      socket, Told{end.qp->qp_num, end.mr->rkey, reinterpret_cast<uintptr_t>(end.memory.data())});
  end.connect(device, peer.qpn);
  if (owner && sends)
    for (uint32_t i = 0; i < list_most; ++i)
      post_receive(end);
  exchange(socket, 'c');
  if (owner && sends)
    take_sends(end, socket);
  if (owner) {
    pollfd over{socket, POLLIN, 0};
    poll(&over, 1, -1);
    exchange(socket, 'r');
    return 0;
  }
  Program program(end, wanted, peer);
  program.run(wanted.count);
  printf("%.1f\n", program.run(wanted.count) / static_cast<double>(wanted.count));
  exchange(socket, 'r');
  int status = 0;
  must(waitpid(child, &status, 0) == child && status == 0, "the other process");
  return 0; // objects go with the process
}
