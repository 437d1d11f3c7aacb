// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// An ordinary program of two processes that are started apart, so that either can be stopped or
// killed at any of its steps.
//
//   steps owner SOCKET        has memory for one peer after the other that comes to SOCKET
//   steps initiator SOCKET    writes and reads back; says in a line of JSON how that went
#include "../bench/ends.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace {

using bench::Device;
using bench::End;
using bench::must;
using Clock = std::chrono::steady_clock;

constexpr unsigned rounds = 64; // each a WRITE, and a READ of the same bytes
constexpr uint32_t bytes = 64;
constexpr auto nothing_comes = std::chrono::seconds(90);

struct Told {
  uint32_t qpn;
  uint32_t rkey;
  uint64_t address;
};

int rendezvous(const char* path, bool listens) {
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  must(strlen(path) + 5 < sizeof at.sun_path, "a shorter name");
  strcpy(at.sun_path, path);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  must(fd >= 0, "socket");
  if (listens) { // its name is there when it listens
    strcat(at.sun_path, ".new");
    must(bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0 && listen(fd, 8) == 0 &&
             rename(at.sun_path, path) == 0,
         path);
  } else {
    must(connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0, path);
  }
  return fd;
}

// False: the other one is gone.
bool meet(int fd, Device& device, End& end, Told& theirs) {
  const Told mine{end.qp->qp_num, end.mr->rkey, reinterpret_cast<uintptr_t>(end.memory.data())};
  if (send(fd, &mine, sizeof mine, MSG_NOSIGNAL) != sizeof mine ||
      recv(fd, &theirs, sizeof theirs, MSG_WAITALL) != sizeof theirs)
    return false;
  end.connect(device, theirs.qpn);
  char ready = 'r';
  return send(fd, &ready, 1, MSG_NOSIGNAL) == 1 && recv(fd, &ready, 1, 0) == 1;
}

void end_of(End& end) {
  must(ibv_destroy_qp(end.qp) == 0 && ibv_dereg_mr(end.mr) == 0 && ibv_destroy_cq(end.cq) == 0,
       "the end");
}

int own(const char* path) {
  Device device;
  const int listener = rendezvous(path, true);
  for (;;) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    must(fd >= 0, "accept");
    End end(device, 4);
    Told theirs{};
    char over = 0;
    if (meet(fd, device, end, theirs))
      while (recv(fd, &over, 1, 0) > 0) {
      }
    end_of(end);
    close(fd);
  }
}

ibv_wc_status request(End& end, ibv_wr_opcode opcode, char* local, const Told& theirs, size_t at) {
  ibv_sge sge{reinterpret_cast<uintptr_t>(local), bytes, end.mr->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma = {theirs.address + at, theirs.rkey};
  ibv_send_wr* bad = nullptr;
  must(ibv_post_send(end.qp, &wr, &bad) == 0, "ibv_post_send");
  const auto until = Clock::now() + nothing_comes;
  ibv_wc wc{};
  for (int n = 0; n == 0; n = ibv_poll_cq(end.cq, 1, &wc)) {
    must(n == 0, "ibv_poll_cq");
    must(Clock::now() < until, "a completion within 90 s");
  }
  return wc.status;
}

int initiate(const char* path) {
  Device device;
  const int fd = rendezvous(path, false);
  End end(device, 4);
  Told theirs{};
  const bool met = meet(fd, device, end, theirs);
  const auto begun = Clock::now();
  unsigned done = 0;
  bool right = true;
  ibv_wc_status status = IBV_WC_SUCCESS;
  for (; met && done < rounds && status == IBV_WC_SUCCESS && right; ++done) {
    char* const wrote = end.memory.data();
    char* const read = wrote + bytes;
    memset(wrote, static_cast<int>(done + 1), bytes);
    memset(read, 0, bytes);
    const size_t at = size_t{done} * bytes;
    status = request(end, IBV_WR_RDMA_WRITE, wrote, theirs, at);
    if (status == IBV_WC_SUCCESS)
      status = request(end, IBV_WR_RDMA_READ, read, theirs, at);
    right = status != IBV_WC_SUCCESS || memcmp(wrote, read, bytes) == 0;
  }
  const std::chrono::duration<double> took = Clock::now() - begun;
  printf("{\"met\": %s, \"done\": %u, \"of\": %u, \"right\": %s, \"status\": \"%s\", "
         "\"seconds\": %.3f}\n",
         met ? "true" : "false", done, rounds, right ? "true" : "false", ibv_wc_status_str(status),
         took.count());
  fflush(stdout);
  end_of(end);
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  must(argc == 3, "steps owner|initiator SOCKET");
  return strcmp(argv[1], "owner") == 0 ? own(argv[2]) : initiate(argv[2]);
}
