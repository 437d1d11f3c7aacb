// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Programs that are started and have nothing to do with who started them.
#include "catch.h"
#include "link/detached.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#if !defined(__SANITIZE_THREAD__)

using adverb::link::start_detached;

namespace {

std::atomic<int> children_ended{0};

// What `script` says by descriptor 3, until it has ended.
std::string say(const std::string& script) {
  std::array<int, 2> ends{};
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
  REQUIRE(start_detached("/bin/sh", {"-c", script}, std::array{ends[1]}) == 0);
  CHECK(fcntl(ends[1], F_GETFD) == FD_CLOEXEC); // still this process's
  close(ends[1]);
  std::string said;
  std::array<char, 4096> some;
  for (ssize_t n; (n = read(ends[0], some.data(), some.size())) > 0;)
    said.append(some.data(), static_cast<size_t>(n));
  close(ends[0]);
  return said;
}

} // namespace

TEST_CASE("a detached program is nobody's child here, and its end is told to nobody") {
  const auto before = signal(SIGCHLD, [](int) { ++children_ended; });
  const std::string parent = say("cut -d' ' -f4,6 /proc/$$/stat >&3; echo $$ >&3");
  const std::string mine = std::to_string(getpid()) + " ";
  CHECK(parent.substr(0, mine.size()) != mine);
  for (const int flags : {0, static_cast<int>(__WALL), static_cast<int>(__WCLONE)}) {
    CHECK(waitpid(-1, nullptr, WNOHANG | flags) == -1);
    CHECK(errno == ECHILD);
  }
  CHECK(children_ended == 0);
  signal(SIGCHLD, before);
}

TEST_CASE("a detached program leads a session of its own") {
  const std::string said = say("cut -d' ' -f6 /proc/$$/stat >&3; echo $$ >&3");
  CHECK(said.substr(0, said.find('\n')) == said.substr(said.find('\n') + 1, said.find('\n')));
}

TEST_CASE("a detached program has no descriptor of this process's but those it is given") {
  const int leak = open("/dev/zero", O_RDONLY); // not closed on exec
  REQUIRE(leak >= 0);
  const int far = fcntl(leak, F_DUPFD, 200);
  // By what is built into the shell, which has no descriptor of its own meanwhile, such as a
  // pipe's.
  const std::string said =
      say("n=0; while [ $n -lt 1024 ]; do if [ $n -ne 3 ] && [ -e /proc/$$/fd/$n ]; then "
          "[ /proc/$$/fd/$n -ef /dev/null ] && echo $n /dev/null >&3 || echo $n another >&3; "
          "fi; n=$((n + 1)); done");
  CHECK(said == "0 /dev/null\n1 /dev/null\n2 /dev/null\n");
  close(leak);
  close(far);
}

TEST_CASE("a detached program is told of its sockets and of nothing else of the environment") {
  const std::string said = say("tr '\\0' '\\n' < /proc/$$/environ >&3; echo $$ >&3");
  const auto last = said.rfind('\n', said.size() - 2);
  const std::string pid = said.substr(last + 1, said.size() - last - 2);
  CHECK(said.substr(0, last + 1) == "LISTEN_PID=" + pid + "\nLISTEN_FDS=1\n");
}

TEST_CASE(
    "a detached program has no signal blocked or ignored, and this process has those it had") {
  const auto before = signal(SIGPIPE, SIG_IGN);
  sigset_t block, was, now;
  sigemptyset(&block);
  sigaddset(&block, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &block, &was);
  const std::string said = say("grep -E 'Sig(Blk|Ign)' /proc/self/status >&3");
  pthread_sigmask(SIG_SETMASK, &was, &now);
  CHECK(sigismember(&now, SIGUSR1) == 1);
  CHECK(sigismember(&now, SIGUSR2) == 0);
  CHECK(said == "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
  CHECK(signal(SIGPIPE, before) == SIG_IGN);
}

TEST_CASE("a program that cannot be started says so, and nothing is left of the attempt") {
  CHECK(start_detached("/nowhere/at/all", {}, {}) == ENOENT);
  CHECK(start_detached("/dev/null", {}, {}) == EACCES);
  CHECK(waitpid(-1, nullptr, WNOHANG | static_cast<int>(__WALL)) == -1);
  CHECK(errno == ECHILD);
  CHECK(start_detached("/bin/true", {}, std::array<int, 9>{}) == EINVAL);
}

#endif
