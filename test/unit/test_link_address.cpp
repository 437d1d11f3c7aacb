// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Whose connection one is, and where it comes from.
#include "catch.h"
#include "link/address.h"
#include "skip.h"

#include <arpa/inet.h>
#include <cstddef>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace adverb::link;

namespace {

sockaddr_in6 any() {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  return address;
}

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = port;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// A connection over IPv4 to a listener of both families, as the broker's is.
struct Connected {
  Connected() {
    sockaddr_in6 at = any();
    socklen_t bytes = sizeof at;
    REQUIRE(bind(listener, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
    REQUIRE(listen(listener, 4) == 0);
    getsockname(listener, reinterpret_cast<sockaddr*>(&at), &bytes);
    const sockaddr_in to = loopback(at.sin6_port);
    REQUIRE(connect(client, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
    server = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    REQUIRE(server >= 0);
  }
  ~Connected() {
    for (const int fd : {listener, client, server})
      if (fd >= 0)
        close(fd);
  }
  int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int server = -1;
};

in6_addr v6(const char* text) {
  in6_addr address{};
  REQUIRE(inet_pton(AF_INET6, text, &address) == 1);
  return address;
}

// From here on this process has no netlink.
bool forbid_netlink() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(code), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

} // namespace

TEST_CASE("a connection of this host is known by its user") {
  const Connected c;
  CHECK(user_here(c.server) == geteuid());
  CHECK(user_here(c.client) == geteuid());
}

TEST_CASE("a connection of another user is known as theirs, with netlink and without") {
  const bool netlink = GENERATE(true, false);
  if (geteuid() != 0) {
    adverb::test::skip("needs root to be another user");
    return;
  }
  Connected c;
  close(c.client);
  close(c.server);
  const pid_t child = fork();
  if (child == 0) {
    sockaddr_in6 at = any();
    socklen_t bytes = sizeof at;
    getsockname(c.listener, reinterpret_cast<sockaddr*>(&at), &bytes);
    if (seteuid(65534) != 0)
      _exit(2);
    c.client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in to = loopback(at.sin6_port);
    if (connect(c.client, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0 ||
        seteuid(0) != 0 || (!netlink && !forbid_netlink()))
      _exit(3);
    c.server = accept4(c.listener, nullptr, nullptr, SOCK_CLOEXEC);
    _exit(user_here(c.server) == uid_t{65534} && user_here(c.client) == uid_t{0} ? 0 : 4);
  }
  c.client = c.server = -1;
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

// The kernel calls there all whom the namespace does not know by one number, which is also this
// process's own.
TEST_CASE("nobody is known in a user namespace that has no names for users") {
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWUSER) != 0)
      _exit(2);
    const Connected c;
    const auto user = user_here(c.server);
    _exit(user == unknown_user && geteuid() != unknown_user ? 0 : 3);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) {
    adverb::test::skip("this host permits no user namespaces");
    return;
  }
  CHECK(status == 0);
}

// Its socket belongs to nobody then, and the kernel says it is root's.
TEST_CASE("a connection that is being closed is nobody's") {
  Connected c;
  SECTION("half") {
    shutdown(c.client, SHUT_WR);
  }
  SECTION("whole") {
    close(c.client);
    c.client = -1;
  }
  CHECK_FALSE(user_here(c.server));
}

TEST_CASE("who listens where a connection came from has not made it") {
  Connected c;
  const int on = 1;
  sockaddr_in from{};
  socklen_t bytes = sizeof from;
  getsockname(c.client, reinterpret_cast<sockaddr*>(&from), &bytes);
  const linger at_once{1, 0};
  setsockopt(c.client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  const int held = dup(c.server);
  const int other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  setsockopt(other, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  shutdown(c.server, SHUT_WR); // the server's end waits, connected no more
  close(c.client);
  c.client = -1;
  from.sin_addr.s_addr = htonl(INADDR_ANY);
  REQUIRE(bind(other, reinterpret_cast<const sockaddr*>(&from), sizeof from) == 0);
  REQUIRE(listen(other, 1) == 0);
  CHECK_FALSE(user_here(held));
  close(other);
  close(held);
}

TEST_CASE("this host's own addresses are told from others") {
  CHECK(is_own(v6("::1")));
  CHECK(is_own(v6("::ffff:127.0.0.1")));
  CHECK(is_own(v6("::ffff:127.9.8.7")));
  CHECK_FALSE(is_own(v6("::ffff:192.0.2.1")));
  CHECK_FALSE(is_own(v6("2001:db8::1")));
}
