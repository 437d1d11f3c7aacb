// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a handler sees and may do: frame, stack, mask, arguments, ways out.
#include "cases.h"
#include "copies.h"

#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <ctime>
#include <execinfo.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <thread>
#include <ucontext.h>
#include <unistd.h>

namespace signals {
namespace {

sigjmp_buf out;

using Informed = void (*)(int, siginfo_t*, void*);

struct sigaction informed(Informed handler, int flags = 0) {
  struct sigaction act{};
  act.sa_sigaction = handler;
  act.sa_flags = SA_SIGINFO | flags;
  return act;
}

void leave(int signal, siginfo_t* info, void*) {
  const bool segv = signal == SIGSEGV;
  say("handler: %s, code %d, address %s", segv ? "SIGSEGV" : "SIGBUS", info->si_code,
      info->si_addr == (segv ? no_access() : beyond_file()) ? "as touched" : "another");
  siglongjmp(out, 1);
}

// Whether a handler left what touches the byte.
[[gnu::noinline]] bool leaves(volatile char* at) {
  if (sigsetjmp(out, 1) != 0)
    return true;
  *at = 1;
  return false;
}

void touch(volatile char* at) {
  if (leaves(at))
    say("left by siglongjmp");
}

void both(const struct sigaction& act) {
  must(sigaction(SIGSEGV, &act, nullptr) == 0 && sigaction(SIGBUS, &act, nullptr) == 0,
       "sigaction");
}

void before(const char*) {
  both(informed(leave));
  Copies copies;
  copies.say();
  say_whose();
  touch(no_access());
  touch(beyond_file());
  copies.say();
}

void after(const char*) {
  Copies copies;
  copies.say();
  say_whose();
  both(informed(leave));
  touch(no_access());
  touch(beyond_file());
  copies.say();
  touch(no_access());
}

void during(const char*) {
  Copies copies;
  copies.say();
  say_whose();
  std::atomic<bool> over{false};
  std::atomic<unsigned> wrong{0};
  std::thread copier([&] {
    while (!over)
      wrong += copies.good() && copies.bad() ? 0 : 1;
  });
  static std::atomic<unsigned> seen{0};
  for (int i = 0; i < 300; ++i) {
    both(informed(
        [](int, siginfo_t*, void*) {
          ++seen;
          siglongjmp(out, 1);
        },
        i % 2 == 0 ? SA_NODEFER : 0));
    leaves(i % 3 == 0 ? beyond_file() : no_access());
    both({});
  }
  over = true;
  copier.join();
  say("%u faults handled, %u copies wrong", seen.load(), wrong.load());
}

void plain(const char*) {
  signal(SIGSEGV, [](int signal) {
    say("handler: %d", signal);
    siglongjmp(out, 1);
  });
  Copies copies;
  copies.say();
  say_whose();
  for (int i = 0; i < 3; ++i)
    touch(no_access());
  copies.say();
}

// Which of some signals the thread blocks now.
void say_mask(const char* where) {
  sigset_t now;
  sigprocmask(SIG_BLOCK, nullptr, &now);
  say("%s:%s%s%s%s", where, sigismember(&now, SIGSEGV) ? " SEGV" : "",
      sigismember(&now, SIGBUS) ? " BUS" : "", sigismember(&now, SIGUSR1) ? " USR1" : "",
      sigismember(&now, SIGUSR2) ? " USR2" : "");
}

void mask(const char*) {
  Copies copies;
  copies.say();
  say_whose();
  struct sigaction act = informed([](int, siginfo_t*, void*) {
    say_mask("mask in the handler");
    siglongjmp(out, 1);
  });
  sigaddset(&act.sa_mask, SIGUSR1);
  for (const int flags : {0, SA_NODEFER}) {
    act.sa_flags = SA_SIGINFO | flags;
    both(act);
    touch(no_access());
    say_mask("mask after it");
    copies.say();
  }
  act.sa_mask = {};
  sigaddset(&act.sa_mask, SIGSEGV);
  sigaddset(&act.sa_mask, SIGUSR2);
  both(act);
  touch(beyond_file());
  copies.say();
}

alignas(16) char stack[65536];

void on_stack(const char*) {
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  must(sigaltstack(&alternate, nullptr) == 0, "sigaltstack");
  Copies copies;
  copies.say();
  say_whose();
  for (const int flags : {0, SA_ONSTACK}) {
    both(informed(
        [](int, siginfo_t*, void*) {
          const char here = 0;
          stack_t now{};
          sigaltstack(nullptr, &now);
          say("a local is %s the alternate stack, %s",
              &here >= stack && &here < stack + sizeof stack ? "on" : "off",
              (now.ss_flags & SS_ONSTACK) != 0 ? "which is in use" : "which is free");
          siglongjmp(out, 1);
        },
        flags));
    touch(no_access());
    copies.say();
  }
}

#if defined(__x86_64__)
extern "C" const char signals_test_touch[];
extern "C" const char signals_test_touched[];

// A virtual machine's: it knows the instruction and where to go on.
void edits(const char*) {
  Copies copies;
  copies.say();
  say_whose();
  both(informed([](int, siginfo_t*, void* context) {
    auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    say("handler: at the %s", registers[REG_RIP] == reinterpret_cast<greg_t>(signals_test_touch)
                                  ? "instruction"
                                  : "wrong place");
    registers[REG_RIP] = reinterpret_cast<greg_t>(signals_test_touched);
    registers[REG_RAX] = 4711;
  }));
  for (int i = 0; i < 3; ++i) {
    long result = 0;
    asm volatile(".globl signals_test_touch\nsignals_test_touch:\n  movb $1, (%1)\n"
                 ".globl signals_test_touched\nsignals_test_touched:\n"
                 : "+a"(result)
                 : "r"(no_access())
                 : "memory");
    say("went on with %ld", result);
    copies.say();
  }
}

// Frames from the handler up to who faulted.
[[gnu::noinline]] void faults_here() {
  asm volatile("movb $1, (%0)" ::"r"(no_access()) : "memory");
}

void frames(const char*) {
  void* warm[4];
  backtrace(warm, 4);
  Copies copies;
  copies.say();
  say_whose();
  both(informed([](int, siginfo_t*, void* context) {
    void* found[32];
    const int count = backtrace(found, 32);
    const auto at =
        static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
    int frame = 0;
    while (frame < count && reinterpret_cast<uintptr_t>(found[frame]) != at)
      ++frame;
    say("who faulted is frame %d%s", frame, frame == count ? ", which is none" : "");
    siglongjmp(out, 1);
  }));
  if (sigsetjmp(out, 1) == 0)
    faults_here();
}
#endif

struct sigaction inner;

// A sanitizer's: it passes on what is not its own to whom it found.
void chain(const char*) {
  both(informed([](int, siginfo_t* info, void*) {
    say("inner handler, code %d", info->si_code);
    siglongjmp(out, 1);
  }));
  Copies copies;
  copies.say();
  say_whose();
  const struct sigaction act = informed([](int signal, siginfo_t* info, void* context) {
    say("outer handler, code %d", info->si_code);
    inner.sa_sigaction(signal, info, context);
  });
  must(sigaction(SIGSEGV, &act, &inner) == 0, "sigaction");
  touch(no_access());
  copies.say();
  must(sigaction(SIGSEGV, &inner, nullptr) == 0, "sigaction");
  touch(no_access());
}

void leaves_often(const char*) {
  both(informed([](int, siginfo_t*, void*) { siglongjmp(out, 1); }));
  Copies copies;
  copies.say();
  say_whose();
  int left = 0;
  for (int i = 0; i < 1000; ++i) {
    left += leaves(no_access()) ? 1 : 0;
    if (i % 10 == 0)
      must(copies.good() && copies.bad(), "a copy");
  }
  say("left %d times", left);
}

// A handler of one signal that has another: copies where the first may be blocked.
void copies_inside(const char*) {
  static Copies* copies = nullptr;
  both(informed([](int, siginfo_t*, void*) {
    copies->say();
    siglongjmp(out, 1);
  }));
  Copies made;
  copies = &made;
  made.say();
  say_whose();
  touch(no_access());
  made.say();
  touch(beyond_file());
  made.say();
}

} // namespace

void add_handler_cases(std::vector<Case>& to) {
  to.insert(to.end(), {{"handler_before_copies", before},
                       {"handler_after_copies", after},
                       {"handlers_during_copies", during},
                       {"handler_without_siginfo", plain},
                       {"mask_in_handler", mask},
                       {"alternate_stack", on_stack},
#if defined(__x86_64__)
                       {"handler_edits_context", edits},
                       {"frames_of_handler", frames},
#endif
                       {"handler_chains", chain},
                       {"handler_leaves_often", leaves_often},
                       {"handler_copies", copies_inside}});
}

} // namespace signals
