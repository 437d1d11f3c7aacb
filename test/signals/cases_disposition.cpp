// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What is asked and answered of dispositions and masks, who inherits them, and how a process ends.
#include "cases.h"
#include "copies.h"

#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <fstream>
#include <iterator>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

// Programs use them all the same.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace signals {
namespace {

sigjmp_buf out;

void first(int) {
  say("first handler");
  siglongjmp(out, 1);
}
void second(int) {
  say("second handler");
  siglongjmp(out, 1);
}

const char* name_of(sighandler_t handler) {
  return handler == SIG_DFL    ? "default"
         : handler == SIG_IGN  ? "ignored"
         : handler == SIG_HOLD ? "held"
         : handler == SIG_ERR  ? "error"
         : handler == first    ? "first"
         : handler == second   ? "second"
                               : "another";
}

void say_disposition(int signal) {
  struct sigaction now{};
  must(sigaction(signal, nullptr, &now) == 0, "sigaction");
  uint64_t mask = 0;
  memcpy(&mask, &now.sa_mask, sizeof mask);
  say("%s: %s, flags %x, mask %lx", signal == SIGSEGV ? "SIGSEGV" : "SIGBUS",
      name_of(now.sa_handler), static_cast<unsigned>(now.sa_flags), mask);
}

void touch(volatile char* at) {
  if (sigsetjmp(out, 1) == 0)
    *at = 1;
}

void functions_once() {
  for (const int s : {SIGSEGV, SIGBUS}) {
    say("signal: %s", name_of(signal(s, first)));
    say_disposition(s);
    say("__sysv_signal: %s", name_of(__sysv_signal(s, second)));
    say_disposition(s);
    say("sysv_signal: %s", name_of(sysv_signal(s, first)));
    say_disposition(s);
    say("ssignal: %s", name_of(ssignal(s, second)));
    say_disposition(s);
    say("siginterrupt: %d", siginterrupt(s, 1));
    say_disposition(s);
    say("signal: %s", name_of(signal(s, first)));
    say_disposition(s);
    say("siginterrupt: %d", siginterrupt(s, 0));
    say_disposition(s);
    say("sigset: %s", name_of(sigset(s, second)));
    say_disposition(s);
    say("sigset, hold: %s", name_of(sigset(s, SIG_HOLD)));
    say("sigset, hold: %s", name_of(sigset(s, SIG_HOLD)));
    say_disposition(s);
    say("sigset: %s", name_of(sigset(s, first)));
    say("sigset: %s", name_of(sigset(s, second)));
    say("sigignore: %d", sigignore(s));
    say_disposition(s);
    say("signal, error: %s %d", name_of(signal(s, SIG_ERR)), errno == EINVAL);
    struct sigaction odd{};
    odd.sa_handler = first;
    odd.sa_flags = 0x7fffffff & ~SA_SIGINFO & ~0x04000000;
    memset(&odd.sa_mask, 0xff, sizeof odd.sa_mask);
    say("sigaction, everything: %d", sigaction(s, &odd, nullptr));
    say_disposition(s);
    odd.sa_flags = static_cast<int>(SA_RESETHAND) | SA_ONSTACK;
    odd.sa_handler = SIG_DFL;
    say("sigaction, default with flags: %d", sigaction(s, &odd, nullptr));
    say_disposition(s);
    say("signal, default: %s", name_of(signal(s, SIG_DFL)));
    say_disposition(s);
  }
}

void functions(const char*) {
  functions_once();
  Copies copies;
  copies.say();
  say_whose();
  functions_once();
  copies.say();
}

void once(const char*) {
  struct sigaction act{};
  act.sa_handler = first;
  act.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGSEGV, &act, nullptr);
  Copies copies;
  copies.say();
  say_whose();
  touch(no_access());
  say_disposition(SIGSEGV);
  copies.say();
  touch(no_access()); // ends it
}

void once_system_v(const char*) {
  Copies copies;
  copies.say();
  say_whose();
  sysv_signal(SIGBUS, first);
  touch(beyond_file());
  say_disposition(SIGBUS);
  copies.say();
  kill(getpid(), SIGBUS); // ends it
}

void told(int signal, siginfo_t* info, void*) {
  say("handler: %s, code %d, sent by %s, value %d", signal == SIGSEGV ? "SIGSEGV" : "SIGBUS",
      info->si_code, info->si_pid == getpid() ? "itself" : "another", info->si_value.sival_int);
}

void sent(const char*) {
  struct sigaction act{};
  act.sa_sigaction = told;
  act.sa_flags = SA_SIGINFO;
  Copies copies;
  copies.say();
  say_whose();
  for (const int s : {SIGSEGV, SIGBUS}) {
    sigaction(s, &act, nullptr);
    kill(getpid(), s);
    raise(s);
    sigval value{};
    value.sival_int = 4711;
    sigqueue(getpid(), s, value);
    copies.say();
  }
}

template <int Signal> void sent_default(const char*) {
  Copies copies;
  copies.say();
  say_whose();
  kill(getpid(), Signal);
  say("still here");
}

template <int Signal> void queued_default(const char*) {
  sysv_signal(Signal, first);
  Copies copies;
  copies.say();
  say_whose();
  struct sigaction act{};
  act.sa_flags = SA_NODEFER;
  sigaction(Signal, &act, nullptr);
  sigqueue(getpid(), Signal, {});
  say("still here");
}

void fault_default(const char*) {
  Copies copies;
  copies.say();
  say_whose();
  *no_access() = 1;
}

void bus_default(const char*) {
  Copies copies;
  copies.say();
  say_whose();
  *beyond_file() = 1;
}

void fault_ignored(const char*) {
  Copies copies;
  copies.say();
  signal(SIGSEGV, SIG_IGN);
  kill(getpid(), SIGSEGV);
  say("ignored one that was sent");
  copies.say();
  *no_access() = 1;
}

void exec_ignored(const char* program) {
  Copies copies;
  copies.say();
  say_whose();
  signal(SIGSEGV, SIG_IGN);
  copies.say();
  execl(program, program, "--after-exec", std::to_string(SIGSEGV).c_str(), nullptr);
}

void exec_handled(const char* program) {
  signal(SIGBUS, first);
  Copies copies;
  copies.say();
  say_whose();
  execl(program, program, "--after-exec", std::to_string(SIGBUS).c_str(), nullptr);
}

void vfork_resets(const char*) {
  signal(SIGSEGV, first);
  Copies copies;
  copies.say();
  say_whose();
  const pid_t pid = vfork();
  if (pid == 0) {
    say_disposition(SIGSEGV);
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_IGN);
    say_disposition(SIGSEGV);
    say_disposition(SIGBUS);
    _exit(0);
  }
  must(pid > 0, "vfork");
  waitpid(pid, nullptr, 0);
  say_disposition(SIGSEGV);
  say_disposition(SIGBUS);
  touch(no_access());
  copies.say();
}

void fork_changes(const char*) {
  signal(SIGSEGV, first);
  Copies copies;
  copies.say();
  say_whose();
  const pid_t pid = fork();
  if (pid == 0) {
    say_disposition(SIGSEGV);
    touch(no_access());
    signal(SIGSEGV, second);
    touch(no_access());
    _exit(0);
  }
  must(pid > 0, "fork");
  waitpid(pid, nullptr, 0);
  say_disposition(SIGSEGV);
  touch(no_access());
  copies.say();
}

void blocked(const char*) {
  Copies copies;
  copies.say();
  say_whose();
  std::thread([&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    copies.say();
  }).join();
  copies.say();
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, SIGSEGV);
  sigprocmask(SIG_BLOCK, &one, nullptr);
  copies.say();
  sigprocmask(SIG_UNBLOCK, &one, nullptr);
  sighold(SIGSEGV);
  copies.say();
  sigrelse(SIGSEGV);
  sigset(SIGSEGV, SIG_HOLD);
  copies.say();
  sigset(SIGSEGV, SIG_DFL);
  sigblock(1 << (SIGSEGV - 1));
  copies.say();
  sigsetmask(0);
  copies.say();
}

// Until the next copy looks at who has the signals: it does so when 10 ms have passed since the
// last time, by the coarse clock.
void wait_for_a_look() {
  const auto now = [] {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
  };
  for (const int64_t from = now(); now() - from <= 10'000'000;) {
    const timespec time{0, 1'000'000};
    nanosleep(&time, nullptr);
  }
}

// What is logged is written by a thread of its own, which the end of the program does not wait for.
// The log is the file that run.sh names; a minute's alarm ends the wait for a line that never
// comes.
void await_logged(const char* line) {
  const char* path = getenv("SIGNALS_LOG");
  for (bool found = path == nullptr; !found;) {
    std::ifstream log(path);
    const std::string text{std::istreambuf_iterator<char>(log), {}};
    found = text.find(line) != std::string::npos;
    const timespec time{0, 1'000'000};
    nanosleep(&time, nullptr);
  }
}

void past_hooks(const char*) {
  signal(SIGBUS, second);
  Copies copies;
  copies.say();
  say_whose();
  struct {
    sighandler_t handler;
    unsigned long flags;
    void* restorer;
    uint64_t mask;
  } act{};
  must(syscall(SYS_rt_sigaction, SIGSEGV, nullptr, &act, sizeof act.mask) == 0, "rt_sigaction");
  if (act.restorer == nullptr) { // of a disposition that has never been set
    signal(SIGUSR1, first);
    syscall(SYS_rt_sigaction, SIGUSR1, nullptr, &act, sizeof act.mask);
  }
  act.handler = first;
  act.flags = 0x04000000;
  act.mask = 0;
  must(syscall(SYS_rt_sigaction, SIGSEGV, &act, nullptr, sizeof act.mask) == 0, "rt_sigaction");
  wait_for_a_look();
  copies.say();
  say_disposition(SIGSEGV);
  say_disposition(SIGBUS);
  touch(no_access());
  touch(beyond_file());
  copies.say();
  say("signal: %s", name_of(signal(SIGSEGV, second)));
  touch(no_access());
  copies.say();
  await_logged("replaced past sigaction");
}

void masked_past_hooks(const char*) {
  Copies copies;
  copies.say();
  say_whose();
  const uint64_t faults = (1ul << (SIGSEGV - 1)) | (1ul << (SIGBUS - 1));
  syscall(SYS_rt_sigprocmask, SIG_BLOCK, &faults, nullptr, sizeof faults);
  wait_for_a_look();
  copies.say();
}

} // namespace

void say(const char* format, ...) {
  char line[256];
  va_list words;
  va_start(words, format);
  int n = vsnprintf(line, sizeof line - 1, format, words);
  va_end(words);
  line[n++] = '\n';
  if (write(STDOUT_FILENO, line, static_cast<size_t>(n)) != n)
    _exit(98);
}

volatile char* no_access() {
  static void* at = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return static_cast<volatile char*>(at);
}

volatile char* beyond_file() {
  static void* at = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED,
                         memfd_create("empty", MFD_CLOEXEC), 0);
  return static_cast<volatile char*>(at);
}

void say_whose() {
  for (const int signal : {SIGSEGV, SIGBUS}) {
    void* act[4]{};
    syscall(SYS_rt_sigaction, signal, nullptr, act, sizeof(uint64_t));
    Dl_info info{};
    const bool known = dladdr(act[0], &info) != 0 && info.dli_fname != nullptr;
    fprintf(stderr, "handler of %d: %s\n", signal, known ? info.dli_fname : "no library's");
  }
}

int after_exec(int signal) {
  say_disposition(signal);
  return 0;
}

void add_disposition_cases(std::vector<Case>& to) {
  to.insert(to.end(), {{"functions", functions},
                       {"handler_once", once},
                       {"handler_once_system_v", once_system_v},
                       {"sent_to_handler", sent},
                       {"sent_segv_to_nobody", sent_default<SIGSEGV>},
                       {"sent_bus_to_nobody", sent_default<SIGBUS>},
                       {"queued_segv_to_nobody", queued_default<SIGSEGV>},
                       {"queued_bus_to_nobody", queued_default<SIGBUS>},
                       {"fault_without_handler", fault_default},
                       {"bus_without_handler", bus_default},
                       {"fault_ignored", fault_ignored},
                       {"exec_ignored", exec_ignored},
                       {"exec_handled", exec_handled},
                       {"vfork_child_resets", vfork_resets},
                       {"fork_child_changes", fork_changes},
                       {"blocked", blocked},
                       {"handler_past_hooks", past_hooks},
                       {"mask_past_hooks", masked_past_hooks}});
}

} // namespace signals
