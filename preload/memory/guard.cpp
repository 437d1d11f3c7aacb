// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/guard.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <pthread.h>
#include <ucontext.h>

// The guarded store is one instruction between two labels, so that the handler can tell it by its
// address: a fault there resumes at the third label with 0 in eax.
#if defined(__x86_64__)
extern "C" {
__attribute__((visibility("hidden"))) extern const char adverb_store8_at[];
__attribute__((visibility("hidden"))) extern const char adverb_store4_at[];
__attribute__((visibility("hidden"))) extern const char adverb_store2_at[];
__attribute__((visibility("hidden"))) extern const char adverb_store1_at[];
__attribute__((visibility("hidden"))) extern const char adverb_store_failed[];
__attribute__((visibility("hidden"))) int adverb_store8(void* to, uint64_t value);
__attribute__((visibility("hidden"))) int adverb_store4(void* to, uint64_t value);
__attribute__((visibility("hidden"))) int adverb_store2(void* to, uint64_t value);
__attribute__((visibility("hidden"))) int adverb_store1(void* to, uint64_t value);
}
asm(R"(
.text
.p2align 4
.hidden adverb_store8
.globl adverb_store8
.type adverb_store8, @function
adverb_store8:
.hidden adverb_store8_at
.globl adverb_store8_at
adverb_store8_at:
  movq %rsi, (%rdi)
  movl $1, %eax
  ret
.size adverb_store8, .-adverb_store8
.hidden adverb_store4
.globl adverb_store4
.type adverb_store4, @function
adverb_store4:
.hidden adverb_store4_at
.globl adverb_store4_at
adverb_store4_at:
  movl %esi, (%rdi)
  movl $1, %eax
  ret
.size adverb_store4, .-adverb_store4
.hidden adverb_store2
.globl adverb_store2
.type adverb_store2, @function
adverb_store2:
.hidden adverb_store2_at
.globl adverb_store2_at
adverb_store2_at:
  movw %si, (%rdi)
  movl $1, %eax
  ret
.size adverb_store2, .-adverb_store2
.hidden adverb_store1
.globl adverb_store1
.type adverb_store1, @function
adverb_store1:
.hidden adverb_store1_at
.globl adverb_store1_at
adverb_store1_at:
  movb %sil, (%rdi)
  movl $1, %eax
  ret
.size adverb_store1, .-adverb_store1
.hidden adverb_store_failed
.globl adverb_store_failed
adverb_store_failed:
  xorl %eax, %eax
  ret
)");
#endif

namespace adverb::memory {
namespace {

#if defined(__x86_64__)

struct Chained {
  struct sigaction segv;
  struct sigaction bus;
};
Chained before;
std::once_flag installed;

bool is_ours(uint64_t rip) {
  return rip == reinterpret_cast<uint64_t>(adverb_store8_at) ||
         rip == reinterpret_cast<uint64_t>(adverb_store4_at) ||
         rip == reinterpret_cast<uint64_t>(adverb_store2_at) ||
         rip == reinterpret_cast<uint64_t>(adverb_store1_at);
}

void on_fault(int signal, siginfo_t* info, void* context) {
  auto* uc = static_cast<ucontext_t*>(context);
  auto& rip = uc->uc_mcontext.gregs[REG_RIP];
  if (is_ours(static_cast<uint64_t>(rip))) {
    rip = static_cast<greg_t>(reinterpret_cast<uint64_t>(adverb_store_failed));
    return;
  }
  const struct sigaction& old = signal == SIGBUS ? before.bus : before.segv;
  if ((old.sa_flags & SA_SIGINFO) != 0 && old.sa_sigaction != nullptr) {
    old.sa_sigaction(signal, info, context);
    return;
  }
  if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) {
    old.sa_handler(signal);
    return;
  }
  // Nobody else wants it: put the old disposition back and let the instruction fault again.
  sigaction(signal, &old, nullptr);
}

void install() {
  struct sigaction ours{};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGSEGV, &ours, &before.segv);
  sigaction(SIGBUS, &ours, &before.bus);
}

bool in_place() {
  std::call_once(installed, install);
  for (const int signal : {SIGSEGV, SIGBUS}) {
    struct sigaction now{};
    if (sigaction(signal, nullptr, &now) != 0 || now.sa_sigaction != on_fault)
      return false;
  }
  sigset_t blocked;
  return pthread_sigmask(SIG_BLOCK, nullptr, &blocked) == 0 &&
         sigismember(&blocked, SIGSEGV) == 0 && sigismember(&blocked, SIGBUS) == 0;
}

#endif

} // namespace

bool store_native(void* to, const void* from, size_t bytes) noexcept {
#if defined(__x86_64__)
  if (bytes == 0 || bytes > 8 || !in_place())
    return false;
  auto at = reinterpret_cast<uintptr_t>(to);
  const auto* source = static_cast<const unsigned char*>(from);
  while (bytes != 0) {
    uint64_t value = 0;
    size_t step = 8;
    while (step > bytes || (at & (step - 1)) != 0)
      step /= 2;
    memcpy(&value, source, step);
    auto* p = reinterpret_cast<void*>(at);
    const int ok = step == 8   ? adverb_store8(p, value)
                   : step == 4 ? adverb_store4(p, value)
                   : step == 2 ? adverb_store2(p, value)
                               : adverb_store1(p, value);
    if (ok == 0)
      return false;
    at += step;
    source += step;
    bytes -= step;
  }
  return true;
#else
  (void)to, (void)from, (void)bytes;
  return false;
#endif
}

} // namespace adverb::memory
