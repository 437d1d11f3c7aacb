// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A program that closes what it does not know, has files where others may have had theirs, and
// makes children that do so: descriptors of a library's are not to be seen in any of it.
#include "process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <memory>
#include <pthread.h>
#include <sched.h>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

// What the program knows of: its standard ones and those of its verbs objects.
std::vector<int> known(const ibv_context* context, const Ends& ends) {
  std::vector<int> all = {0, 1, 2, context->cmd_fd, context->async_fd};
  for (const auto* channel : {ends.of_a.channel, ends.of_b.channel})
    if (channel != nullptr)
      all.push_back(channel->fd);
  std::ranges::sort(all);
  return all;
}

void close_unknown(const std::vector<int>& kept, bool by_range) {
  int from = 0;
  for (const int keep : kept) {
    for (int fd = from; fd < keep; ++fd)
      close(fd);
    from = keep + 1;
  }
  if (by_range)
    must(close_range(static_cast<unsigned>(from), ~0U, 0) == 0, "close_range");
  else
    for (int fd = from; fd < 4096; ++fd)
      close(fd);
}

// How many numbers below a hundred are in use at each of many looks: a library's threads may have a
// file open for an instant, however long that takes on a busy machine.
unsigned low_numbers() {
  constexpr int looks = 2000;
  std::array<unsigned, 100> seen{};
  for (int look = 0; look < looks; ++look) {
    for (int fd = 0; fd < static_cast<int>(seen.size()); ++fd)
      seen.at(static_cast<size_t>(fd)) += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    sched_yield();
  }
  return static_cast<unsigned>(std::ranges::count(seen, looks));
}

// In a child that no handler of fork(2) has seen: how many of its own numbers it cannot close.
int cannot_close() {
  int failed = 0;
  for (int fd = 3; fd < 600; ++fd)
    failed += dup2(STDERR_FILENO, fd) == fd && close(fd) != 0 ? 1 : 0;
  return std::min(failed, 100);
}

int status_of(pid_t child) {
  int status = 0;
  must(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status), "a child");
  return WEXITSTATUS(status);
}

// It has this process's memory.
[[gnu::noinline]] int of_vfork() {
  const pid_t child = vfork();
  if (child == 0)
    _exit(cannot_close());
  return status_of(child);
}

[[gnu::noinline]] int of_clone() {
  const auto child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (child == 0)
    _exit(cannot_close());
  return status_of(child);
}

// A number that some library has, if one has: the program knows of none from here on.
int number_of_others() {
  for (int fd = 512; fd < 4096; ++fd)
    if (fcntl(fd, F_GETFD) >= 0)
      return fd;
  return 512;
}

// Ends in close(2), a cancellation point, whosever number it closes.
void* close_one(void* given) {
  int state = 0;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  pthread_cancel(pthread_self());
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
  close(*static_cast<int*>(given));
  return nullptr;
}

} // namespace

void descriptors(bool by_range) {
  const Device device;
  Ends ends(device.context, {});
  requests(ends, 5);
  close_unknown(known(device.context, ends), by_range);
  // Numbers that were somebody's come back for the program's own files.
  constexpr std::string_view mine = "12345678";
  std::vector<int> files;
  for (int i = 0; i < 900; ++i) {
    const int fd = static_cast<int>(syscall(SYS_memfd_create, "mine", 0));
    if (fd < 0)
      break;
    must(write(fd, mine.data(), mine.size()) == static_cast<ssize_t>(mine.size()), "write");
    files.push_back(fd);
  }
  requests(ends, 50);
  {
    Ends more(device.context, {}); // a link, threads
    requests(more, 5);
  }
  unsigned whole = 0;
  for (const int fd : files) {
    std::array<char, 32> text{};
    whole += pread(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(mine.size()) &&
             lseek(fd, 0, SEEK_CUR) == static_cast<off_t>(mine.size());
  }
  printf("requests go on; %s of the program's files are whole\n",
         whole == files.size() && files.size() > 100 ? "all" : "not all");
}

// A program's files have the numbers that they would have.
void numbers() {
  const Device device;
  Ends ends(device.context, {});
  requests(ends, 20);
  printf("%u low numbers in use\n", low_numbers());
}

// More contexts than a library may have foreseen.
void contexts() {
  std::vector<std::unique_ptr<Device>> all;
  for (int i = 0; i < 80; ++i)
    all.push_back(std::make_unique<Device>());
  unsigned good = 0;
  for (const auto& device : {all.front().get(), all[70].get(), all.back().get()}) {
    Ends ends(device->context, {});
    requests(ends, 5);
    ++good;
  }
  printf("%u of 3 contexts work\n", good);
}

// Its table of descriptors is this process's: what it closes there is closed here. It takes such
// numbers alone as the program knows nothing of.
[[gnu::noinline]] int of_clone_files() {
  const auto child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD | CLONE_FILES, 0, 0, 0, 0));
  if (child == 0) {
    for (int fd = 400; fd < 4096; ++fd)
      close(fd);
    _exit(0);
  }
  return status_of(child);
}

void children() {
  const Device device;
  Ends ends(device.context, {});
  requests(ends, 5);
  printf("numbers that children cannot close: %d and %d\n", of_clone(), of_vfork());
  requests(ends, 5);
  must(of_clone_files() == 0, "a child that shares descriptors");
  Ends others(device.context, {}); // a link of their own
  requests(others, 5);
}

void closed_first() {
  closefrom(3);
  requests(20);
  puts("requests after closefrom(3)");
}

void own_stderr() {
  close(STDERR_FILENO);
  const std::string name = "/tmp/process." + std::to_string(getpid());
  const int fd = open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_APPEND, 0600);
  must(fd == STDERR_FILENO, "descriptor 2");
  unlink(name.c_str());
  requests(5);
  must(write(fd, "12345678", 8) == 8, "write");
  struct stat now{};
  must(fstat(fd, &now) == 0, "fstat");
  printf("the program's file has %ld bytes\n", static_cast<long>(now.st_size));
}

void close_cancelled() {
  const Device device;
  Ends ends(device.context, {});
  requests(ends, 5);
  int fd = number_of_others();
  pthread_t thread{};
  must(pthread_create(&thread, nullptr, close_one, &fd) == 0, "pthread_create");
  void* result = nullptr;
  must(pthread_join(thread, &result) == 0, "pthread_join");
  requests(ends, 5);
  printf("close() %s\n", result == PTHREAD_CANCELED ? "is a cancellation point" : "returns");
}
