// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "side.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace verify {
namespace {

constexpr unsigned command_limit_s = 120; // longer than the driver's own watchdog

// A fresh image of this program: a plain fork would carry the parent's verbs state into the agent.
// Returns its pid; the child serves `fd`.
pid_t exec_agent(int fd) {
  char number[16];
  std::snprintf(number, sizeof number, "%d", fd);
  pid_t pid = fork();
  if (pid == 0) {
    execl("/proc/self/exe", "verify", "--role", "agent", "--fd", number, nullptr);
    _exit(127);
  }
  return pid;
}

void no_delay(int fd) {
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

template <size_t I = 0> void dispatch(Agent& agent, uint32_t id, int fd, std::vector<uint8_t>& in) {
  if constexpr (I < std::tuple_size_v<Commands>) {
    if (id != I)
      return dispatch<I + 1>(agent, id, fd, in);
    using C = std::tuple_element_t<I, Commands>;
    C c;
    std::memcpy(static_cast<void*>(&c), in.data(), in.size() < sizeof c ? in.size() : sizeof c);
    const auto reply = agent.exec(c);
    const auto size = static_cast<uint32_t>(size_on_wire(reply));
    write_all(fd, &size, sizeof size);
    write_all(fd, &reply, size);
  }
}

} // namespace

std::atomic<const char*> waiting_for{nullptr};

void write_all(int fd, const void* p, size_t n) {
  for (auto* c = static_cast<const char*>(p); n;) {
    ssize_t k = send(fd, c, n, MSG_NOSIGNAL);
    if (k < 0 && errno == EINTR)
      continue;
    if (k <= 0)
      throw PeerGone("control connection lost");
    c += k, n -= static_cast<size_t>(k);
  }
}

void read_all(int fd, void* p, size_t n) {
  for (auto* c = static_cast<char*>(p); n;) {
    ssize_t k = recv(fd, c, n, 0);
    if (k < 0 && errno == EINTR)
      continue;
    if (k <= 0)
      throw PeerGone("control connection lost");
    c += k, n -= static_cast<size_t>(k);
  }
}

Side::~Side() {
  if (fd_ >= 0)
    close(fd_);
}

Side Side::spawn() {
  int sv[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sv))
    throw PeerGone("socketpair failed");
  pid_t pid = fork();
  if (pid == 0) {
    close(sv[0]);
    // The agent is nobody's child to wait for: tests kill, stop and orphan it.
    pid_t agent = exec_agent(sv[1]);
    _exit(agent > 0 ? 0 : 1);
  }
  close(sv[1]);
  waitpid(pid, nullptr, 0);
  return Side(sv[0]);
}

Side Side::connect(const char* ip, int port) {
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, ip, &to.sin_addr) != 1)
    throw PeerGone("--peer wants an IPv4 address");
  // The server may still be starting: refused connections are tried again for a while.
  for (int tries = 0;; ++tries) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0) {
      no_delay(fd);
      return Side(fd);
    }
    close(fd);
    if (tries == 300)
      throw PeerGone("no server answers");
    usleep(100000);
  }
}

int serve_port(int port) {
  signal(SIGCHLD, SIG_IGN); // agents are reaped by the kernel
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<uint16_t>(port));
  if (bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof at) || listen(listener, 16)) {
    std::perror("verify: listen");
    return 1;
  }
  for (;;) {
    int fd = accept(listener, nullptr, nullptr); // no CLOEXEC: the agent inherits it
    if (fd < 0)
      continue;
    no_delay(fd);
    exec_agent(fd);
    close(fd);
  }
}

int serve_agent(int fd) {
  Agent agent;
  std::vector<uint8_t> in;
  try {
    for (;;) {
      uint32_t head[2];
      read_all(fd, head, sizeof head);
      in.resize(head[1]);
      read_all(fd, in.data(), in.size());
      alarm(command_limit_s); // a command that hangs must not outlive its test
      dispatch(agent, head[0], fd, in);
      alarm(0);
    }
  } catch (const PeerGone&) {
    return 0;
  }
}

SideInfo Agent::exec(const Daemonise&) {
  pid_t pid = fork();
  if (pid > 0)
    _exit(0);
  if (pid < 0)
    info_.err = errno;
  setsid();
  info_.pid = getpid();
  return info_;
}

Outcome Agent::exec(const Exit&) {
  std::exit(0);
}

} // namespace verify
