// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Ends in two processes that tell each other where they are.
#pragma once
#include "test_ends.h"

#include <csignal>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

// A child that runs `body` on its own end of a socket pair.
class Child {
public:
  template <typename Body> explicit Child(Body body) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    pid = fork();
    if (pid == 0) {
      close(ends[0]);
      body(ends[1]);
      _exit(0);
    }
    close(ends[1]);
    socket = ends[0];
  }
  ~Child() {
    if (pid > 0) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    close(socket);
  }
  pid_t pid = -1;
  int socket = -1;
};

template <typename T> void tell(int socket, const T& value) {
  REQUIRE(write(socket, &value, sizeof(value)) == sizeof(value));
}
template <typename T> T hear(int socket) {
  T value = {};
  REQUIRE(read(socket, &value, sizeof(value)) == sizeof(value));
  return value;
}

inline void meet(End& end, int socket, Address& peer, uint32_t receives = 0) {
  tell(socket, end.address());
  peer = hear<Address>(socket);
  end.connect(peer);
  for (uint32_t i = 0; i < receives; ++i)
    REQUIRE(end.receive(0, 4096) == 0);
  tell(socket, 'r');
  hear<char>(socket);
}
