// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/own_thread.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <memory>
#include <sched.h>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>

namespace adverb::memory {
namespace {

// All signals but those of faults, while there is one: a thread inherits the mask.
class Blocked {
public:
  Blocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS})
      sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~Blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;

private:
  sigset_t before_{};
};

// Takes out of `set` what the kernel keeps for threads that are bound there: "2-3,7" and a newline.
void leave_isolated(cpu_set_t& set) noexcept {
  const int fd = open("/sys/devices/system/cpu/isolated", O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return;
  char text[512];
  const ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  text[got > 0 ? got : 0] = '\0';
  for (const char* at = text; *at >= '0' && *at <= '9';) {
    char* end = nullptr;
    const unsigned long first = strtoul(at, &end, 10);
    const unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
    for (unsigned long cpu = first; cpu <= last && cpu < CPU_SETSIZE; ++cpu)
      CPU_CLR(cpu, &set);
    at = *end == ',' ? end + 1 : end;
  }
}

// With it pthread_create() sets both before the thread has to run: bound to the processor of a
// real-time poller it never would.
class Attributes {
public:
  Attributes() noexcept {
    pthread_attr_init(&all_);
    const sched_param none{};
    pthread_attr_setinheritsched(&all_, PTHREAD_EXPLICIT_SCHED);
    pthread_attr_setschedpolicy(&all_, SCHED_OTHER);
    pthread_attr_setschedparam(&all_, &none);
  }
  ~Attributes() { pthread_attr_destroy(&all_); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  void go_everywhere() noexcept {
    cpu_set_t set;
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      CPU_SET(cpu, &set);
    leave_isolated(set);
    pthread_attr_setaffinity_np(&all_, sizeof set, &set);
  }
  const pthread_attr_t* get() const noexcept { return &all_; }

private:
  pthread_attr_t all_{};
};

struct Start {
  std::function<void()> run;
};

void* begin(void* given) {
  const std::unique_ptr<Start> start(static_cast<Start*>(given));
  // The id 0 is the calling thread. To be less nice than before needs a right, and is not had
  // without.
  errno = 0;
  if (getpriority(PRIO_PROCESS, 0) != 0 && errno == 0)
    setpriority(PRIO_PROCESS, 0, 0);
  start->run();
  return nullptr;
}

} // namespace

int OwnThread::start(const char* name, std::function<void()> run) {
  auto start = std::make_unique<Start>(Start{std::move(run)});
  const Blocked blocked;
  Attributes attributes;
  attributes.go_everywhere();
  int rc = pthread_create(&thread_, attributes.get(), begin, start.get());
  // A filter of system calls may forbid what the attributes ask for, and a cpuset may have isolated
  // processors alone: then as the program's thread is.
  if (rc != 0)
    rc = pthread_create(&thread_, nullptr, begin, start.get());
  if (rc != 0)
    return rc;
  static_cast<void>(start.release());
  started_ = true;
  pthread_setname_np(thread_, name);
  return 0;
}

void OwnThread::join() noexcept {
  pthread_join(thread_, nullptr);
  started_ = false;
}

void OwnThread::detach() noexcept {
  pthread_detach(thread_);
  started_ = false;
}

} // namespace adverb::memory
