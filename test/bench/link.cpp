// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// An ordinary verbs program on two hosts: how long READs of the other's memory take that are posted
// as soon as their queue pair may send.
//
//   bench_link serve PORT
//   bench_link ask ADDRESS PORT QUEUE_PAIRS
//
// Each of the queue pairs is made, connected and used for two READs of 8 bytes before the next one
// is made. `ask` prints a line for each: its number from 0, the milliseconds from the call that
// made it ready to send to the first completion, and those of the second READ.
#include "ends.h"

#include <arpa/inet.h>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>

namespace {

using bench::Device;
using bench::End;
using bench::must;
using Clock = std::chrono::steady_clock;

struct Told {
  ibv_gid gid;
  uint64_t address;
  uint32_t qpn;
  uint32_t rkey;
};

void say(int socket, const Told& mine) {
  must(write(socket, &mine, sizeof mine) == sizeof mine, "the other host");
}
// False: it has ended.
bool hear(int socket, Told& theirs) {
  const ssize_t n = recv(socket, &theirs, sizeof theirs, MSG_WAITALL);
  must(n == 0 || n == sizeof theirs, "the other host");
  return n != 0;
}

Told of(Device& device, const End& end) {
  Told mine{};
  must(ibv_query_gid(device.context, 1, 1, &mine.gid) == 0, "ibv_query_gid");
  mine.qpn = end.qp->qp_num;
  mine.rkey = end.mr->rkey;
  mine.address = reinterpret_cast<uintptr_t>(end.memory.data());
  return mine;
}

constexpr uint8_t timeout = 18; // 1.1 s: more than a round trip

double read_once(End& end, const Told& theirs, Clock::time_point since) {
  ibv_sge sge{reinterpret_cast<uintptr_t>(end.memory.data()), 8, end.mr->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_READ;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma = {theirs.address, theirs.rkey};
  ibv_send_wr* bad = nullptr;
  must(ibv_post_send(end.qp, &wr, &bad) == 0, "ibv_post_send");
  ibv_wc wc{};
  while (ibv_poll_cq(end.cq, 1, &wc) == 0)
    usleep(200); // a small part of a round trip, which leaves the processor to others
  must(wc.status == IBV_WC_SUCCESS, "READ");
  return std::chrono::duration<double, std::milli>(Clock::now() - since).count();
}

void serve(uint16_t port) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  must(bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0 && listen(listener, 1) == 0,
       "listen");
  const int peer = accept(listener, nullptr, nullptr);
  must(peer >= 0, "accept");
  Device device;
  std::vector<std::unique_ptr<End>> ends;
  Told theirs{};
  while (hear(peer, theirs)) {
    End& end = *ends.emplace_back(std::make_unique<End>(device, 16));
    end.connect(device, theirs.qpn, &theirs.gid, timeout);
    say(peer, of(device, end)); // which may be used from now on
  }
}

void ask(const char* address, uint16_t port, int count) {
  const int peer = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  must(inet_pton(AF_INET, address, &to.sin_addr) == 1 &&
           connect(peer, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0,
       "connect");
  const int on = 1;
  setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  Device device;
  std::vector<std::unique_ptr<End>> ends;
  for (int i = 0; i < count; ++i) {
    End& end = *ends.emplace_back(std::make_unique<End>(device, 16));
    Told theirs{};
    say(peer, of(device, end));
    must(hear(peer, theirs), "the other host");
    const auto ready = Clock::now();
    end.connect(device, theirs.qpn, &theirs.gid, timeout);
    const double first = read_once(end, theirs, ready);
    printf("%d %.2f %.2f\n", i, first, read_once(end, theirs, Clock::now()));
  }
}

} // namespace

int main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "serve" && argc == 3)
    serve(static_cast<uint16_t>(std::stoi(argv[2])));
  else if (role == "ask" && argc == 5)
    ask(argv[2], static_cast<uint16_t>(std::stoi(argv[3])), std::stoi(argv[4]));
  else
    must(false, "usage: bench_link serve PORT | ask ADDRESS PORT QUEUE_PAIRS; that");
  return 0;
}
