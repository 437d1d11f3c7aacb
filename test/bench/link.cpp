// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// An ordinary verbs program on two hosts: how long READs of the other's memory take that are posted
// as soon as their queue pair may send.
//
//   bench_link serve PORT [stay]
//   bench_link ask ADDRESS PORT QUEUE_PAIRS [again]
//
// Each of the queue pairs is made, connected and used for two READs of 8 bytes before the next one
// is made. `ask` prints a line for each: its number from 0, the milliseconds from the call that
// made it ready to send to the first completion, and those of the second READ. `again`: so many
// more for each line on stdin, until that ends. `serve` ends with the last that asks, or stays.
#include "ends.h"

#include <arpa/inet.h>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
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
constexpr uint32_t depth = 2;
constexpr size_t bytes = 4096; // thousands of ends are a few MiB

// Asleep meanwhile: the processor is for who answers.
void await(const End& end) {
  ibv_wc wc{};
  for (;;) {
    must(ibv_req_notify_cq(end.cq, 0) == 0, "ibv_req_notify_cq");
    if (ibv_poll_cq(end.cq, 1, &wc) != 0)
      break;
    ibv_cq* cq = nullptr;
    void* unused = nullptr;
    must(ibv_get_cq_event(end.cq->channel, &cq, &unused) == 0, "ibv_get_cq_event");
    ibv_ack_cq_events(cq, 1);
  }
  must(wc.status == IBV_WC_SUCCESS, "READ");
}

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
  await(end);
  return std::chrono::duration<double, std::milli>(Clock::now() - since).count();
}

int listen_at(uint16_t port) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  must(bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0 &&
           listen(listener, 128) == 0,
       "listen");
  return listener;
}

void serve(uint16_t port, bool stays) {
  Device device;
  std::vector<std::unique_ptr<End>> ends;
  std::vector<pollfd> open{{listen_at(port), POLLIN, 0}}; // and one for each that asks
  do {
    must(poll(open.data(), open.size(), -1) > 0, "poll");
    for (size_t i = open.size(); --i != 0;) {
      Told theirs{};
      if (open[i].revents == 0)
        continue;
      if (!hear(open[i].fd, theirs)) {
        close(open[i].fd);
        open.erase(open.begin() + static_cast<long>(i));
        continue;
      }
      End& end = *ends.emplace_back(std::make_unique<End>(device, depth, bytes));
      end.connect(device, theirs.qpn, &theirs.gid, timeout);
      say(open[i].fd, of(device, end)); // which may be used from now on
    }
    if (open[0].revents != 0) {
      open.push_back({accept(open[0].fd, nullptr, nullptr), POLLIN, 0});
      must(open.back().fd >= 0, "accept");
    }
  } while (stays || open.size() > 1);
}

void ask(const char* address, uint16_t port, int count, bool again) {
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
  ibv_comp_channel* const events = ibv_create_comp_channel(device.context);
  must(events != nullptr, "ibv_create_comp_channel");
  std::vector<std::unique_ptr<End>> ends;
  do {
    for (int i = 0; i < count; ++i) {
      End& end = *ends.emplace_back(std::make_unique<End>(device, depth, bytes, events));
      Told theirs{};
      say(peer, of(device, end));
      must(hear(peer, theirs), "the other host");
      const auto ready = Clock::now();
      end.connect(device, theirs.qpn, &theirs.gid, timeout);
      const double first = read_once(end, theirs, ready);
      printf("%zu %.3f %.3f\n", ends.size() - 1, first, read_once(end, theirs, Clock::now()));
    }
    fflush(stdout);
  } while (again && getchar() != EOF);
}

} // namespace

int main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  const std::string more = argc > 1 ? argv[argc - 1] : "";
  if (role == "serve" && argc == 3 + (more == "stay"))
    serve(static_cast<uint16_t>(std::stoi(argv[2])), more == "stay");
  else if (role == "ask" && argc == 5 + (more == "again"))
    ask(argv[2], static_cast<uint16_t>(std::stoi(argv[3])), std::stoi(argv[4]), more == "again");
  else
    must(false, "usage: bench_link serve PORT [stay] | ask ADDRESS PORT QUEUE_PAIRS [again]; that");
  return 0;
}
