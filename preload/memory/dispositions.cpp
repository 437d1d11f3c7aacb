// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/dispositions.h"
#include "memory/native_copy.h"
#include "world/sync.h"

#include <cerrno>
#include <cstring>
#include <dlfcn.h>
#include <initializer_list>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(ADVERB_NATIVE_COPY)
extern "C" {
// What the kernel calls, and what that asks for whom to jump to; null: return.
[[gnu::visibility("hidden")]] void adverb_on_signal(int signal, siginfo_t* info, void* context);
[[gnu::visibility("hidden")]] void* adverb_handler_of(int signal, siginfo_t* info,
                                                      void* context) noexcept;
}
// A jump and not a call: the program's handler finds the kernel's frame above it, may leave by
// siglongjmp or an exception, and unwinders see nobody in between.
asm(R"(
.text
.p2align 4
.hidden adverb_on_signal
.globl adverb_on_signal
.type adverb_on_signal, @function
adverb_on_signal:
  .cfi_startproc
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  pushq %rdx
  .cfi_adjust_cfa_offset 8
  call adverb_handler_of
  popq %rdx
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  testq %rax, %rax
  jz 1f
  movq %rax, %r11
  xorl %eax, %eax
  jmp *%r11
1:
  ret
  .cfi_endproc
.size adverb_on_signal, .-adverb_on_signal
)");
#endif

namespace adverb::memory {

std::atomic<Native> native_state{Native::unasked};

MaskLook& mask_look() noexcept {
  return ThreadLocal<MaskLook, MaskLook>::get();
}

#if defined(ADVERB_NATIVE_COPY)
namespace {

constexpr int both[] = {SIGSEGV, SIGBUS};

using Sigaction = int (*)(int, const struct sigaction*, struct sigaction*);

// Whose it is behind adverb's own hook, if there is one.
int real_sigaction(int signal, const struct sigaction* now, struct sigaction* was) noexcept {
  static std::atomic<Sigaction> found{nullptr};
  Sigaction real = found.load(std::memory_order_relaxed);
  if (real == nullptr) {
    real = reinterpret_cast<Sigaction>(dlsym(RTLD_NEXT, "sigaction"));
    found.store(real, std::memory_order_relaxed);
  }
  return real(signal, now, was);
}

// The program's disposition as far as the kernel does not have it, in one word, so that a handler
// reads it without a lock: the address and, in the bits no address has, four flags. Mask and other
// flags are the kernel's handler's.
class Stored {
public:
  static constexpr uint64_t siginfo = uint64_t{1} << 63;
  static constexpr uint64_t once = uint64_t{1} << 62;
  static constexpr uint64_t own_stack = uint64_t{1} << 61;
  static constexpr uint64_t never_set = uint64_t{1} << 60; // so without the C library's restorer
  static constexpr uint64_t flags = siginfo | once | own_stack | never_set;

  Stored() = default;
  explicit Stored(uint64_t word) : word_(word) {}
  explicit Stored(const struct sigaction& act)
      : word_(address(act) | ((act.sa_flags & SA_SIGINFO) != 0 ? siginfo : 0) |
              ((act.sa_flags & SA_RESETHAND) != 0 ? once : 0) |
              ((act.sa_flags & SA_ONSTACK) != 0 ? own_stack : 0)) {}

  // Of what the kernel has, where nobody has set anything yet.
  static Stored found(const struct sigaction& act) {
    const Stored as_set(act);
    return (act.sa_flags & restorer) != 0 ? as_set : Stored(as_set.word_ | never_set);
  }

  static uint64_t address(const struct sigaction& act) {
    return reinterpret_cast<uint64_t>(act.sa_handler);
  }
  static bool fits(const struct sigaction& act) { return (address(act) & flags) == 0; }

  uint64_t word() const { return word_; }
  void* handler() const { return reinterpret_cast<void*>(word_ & ~flags); }
  bool is_default() const { return (word_ & ~flags) == reinterpret_cast<uint64_t>(SIG_DFL); }
  bool is_ignored() const { return (word_ & ~flags) == reinterpret_cast<uint64_t>(SIG_IGN); }
  bool resets() const { return (word_ & once) != 0; }
  Stored reset() const { return Stored((word_ & flags) | reinterpret_cast<uint64_t>(SIG_DFL)); }

  // What the kernel is to have for this one, and what it has that for.
  struct sigaction kernels(struct sigaction act) const {
    act.sa_sigaction = adverb_on_signal;
    act.sa_flags = (act.sa_flags | SA_SIGINFO) & ~static_cast<int>(SA_RESETHAND);
    if (is_default())
      act.sa_flags |= SA_ONSTACK;
    return act;
  }
  struct sigaction programs(struct sigaction act) const {
    act.sa_handler = reinterpret_cast<sighandler_t>(handler());
    act.sa_flags &= ~static_cast<int>(SA_SIGINFO | SA_RESETHAND | SA_ONSTACK);
    act.sa_flags |= ((word_ & siginfo) != 0 ? SA_SIGINFO : 0) |
                    ((word_ & once) != 0 ? static_cast<int>(SA_RESETHAND) : 0) |
                    ((word_ & own_stack) != 0 ? SA_ONSTACK : 0);
    if ((word_ & never_set) != 0) {
      act.sa_flags &= ~restorer;
      act.sa_restorer = nullptr;
    }
    return act;
  }

private:
  static constexpr int restorer = 0x04000000; // SA_RESTORER
  uint64_t word_ = 0;
};

std::atomic<uint64_t> stored[2];
std::atomic<pid_t> owner{0}; // the process that has these; a vfork child sees them, too
std::atomic<Listener> listener{nullptr};
std::atomic<uint32_t> changing{0};

std::atomic<uint64_t>& word_of(int signal) {
  return stored[signal == SIGBUS ? 1 : 0];
}
Stored stored_of(int signal) {
  return Stored(word_of(signal).load(std::memory_order_acquire));
}
bool is_ours(const struct sigaction& act) {
  return act.sa_sigaction == adverb_on_signal;
}

// One change of dispositions at a time. A handler may change them as well: no signal arrives while
// it is held.
class Changing {
public:
  Changing() noexcept {
    uint64_t all = ~uint64_t{0};
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &mask_, sizeof mask_);
    while (changing.exchange(1, std::memory_order_acquire) != 0)
      changing.wait(1, std::memory_order_relaxed);
  }
  ~Changing() {
    changing.store(0, std::memory_order_release);
    changing.notify_one();
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask_, nullptr, sizeof mask_);
  }
  Changing(const Changing&) = delete;
  Changing& operator=(const Changing&) = delete;

private:
  uint64_t mask_ = 0;
};

class KeepErrno {
public:
  KeepErrno() noexcept : saved_(errno) {}
  ~KeepErrno() { errno = saved_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

private:
  int saved_;
};

struct sigaction in_kernel(int signal) {
  struct sigaction act{};
  real_sigaction(signal, nullptr, &act);
  return act;
}

// Holds Changing: the program has `next`, of which `now` tells mask and flags.
int install(int signal, const struct sigaction& now, Stored next) {
  if (next.is_ignored())
    native_state = Native::ignored;
  const uint64_t before = word_of(signal).exchange(next.word(), std::memory_order_acq_rel);
  const struct sigaction act = next.is_ignored() ? now : next.kernels(now);
  const int rc = real_sigaction(signal, &act, nullptr);
  if (rc != 0)
    word_of(signal) = before;
  bool ignored = false;
  for (const int one : both)
    ignored |= stored_of(one).is_ignored();
  native_state = ignored ? Native::ignored : Native::on;
  return rc;
}

// Holds Changing: what was taken is the kernel's again.
void give_back() {
  native_state = Native::lost;
  for (const int signal : both) {
    const struct sigaction act = in_kernel(signal);
    if (!is_ours(act))
      continue;
    const struct sigaction theirs = stored_of(signal).programs(act);
    real_sigaction(signal, &theirs, nullptr);
  }
}

// Holds Changing: the kernel has what was left there. (Of an ignored one: that, or what else the
// program told the kernel itself, which is as good.)
bool as_left(int signal, const struct sigaction& act) {
  return is_ours(act) != stored_of(signal).is_ignored();
}

// Only this thread lives on; another may have been in the midst of a change, which is completed
// here.
void in_child() {
  const KeepErrno keep;
  owner = getpid();
  const Native state = native_state;
  if (changing.exchange(0) == 0 || (state != Native::on && state != Native::ignored))
    return;
  for (const int signal : both) {
    const struct sigaction act = in_kernel(signal);
    const Stored has = stored_of(signal);
    const struct sigaction wanted = has.is_ignored() ? has.programs(act) : has.kernels(act);
    real_sigaction(signal, &wanted, nullptr);
  }
}

// What this signal is to be from now on in the process that got it, as nobody is here to see more
// of it than its end.
void make_default(int signal) {
  struct sigaction act{};
  act.sa_handler = SIG_DFL;
  real_sigaction(signal, &act, nullptr);
}

// The program's handler for a signal that has arrived, reset if it wanted to be called but once.
Stored take(int signal) {
  std::atomic<uint64_t>& word = word_of(signal);
  uint64_t seen = word.load(std::memory_order_acquire);
  for (;;) {
    const Stored now(seen);
    if (!now.resets() || now.is_default() || now.is_ignored())
      return now;
    if (getpid() != owner) { // the word is the parent's, the kernel's handler is not
      make_default(signal);
      return now;
    }
    if (word.compare_exchange_weak(seen, now.reset().word(), std::memory_order_acq_rel))
      return now;
  }
}

} // namespace

bool mirrored(int signal) noexcept {
  return signal == SIGSEGV || signal == SIGBUS;
}

void when_lost(Listener to) noexcept {
  listener = to;
}

void take_over() noexcept {
  const KeepErrno keep;
  static std::atomic<bool> watching{false};
  if (!watching.exchange(true))
    pthread_atfork(nullptr, nullptr, in_child);
  const Changing turn;
  if (native_state != Native::unasked)
    return;
  owner = getpid();
  struct sigaction found[2];
  bool fit = true;
  for (int i = 0; i < 2; ++i) {
    found[i] = in_kernel(both[i]);
    if (is_ours(found[i])) // in a child of a fork amid the parent's first
      found[i] = stored_of(both[i]).programs(found[i]);
    fit = fit && Stored::fits(found[i]);
  }
  for (int i = 0; i < 2; ++i)
    word_of(both[i]) = Stored::found(found[i]).word();
  for (int i = 0; fit && i < 2; ++i)
    fit = install(both[i], found[i], Stored(word_of(both[i]))) == 0;
  if (!fit)
    give_back();
}

bool handlers_in_place() noexcept {
  const KeepErrno keep;
  bool in_place = true;
  for (const int signal : both)
    in_place &= is_ours(in_kernel(signal));
  if (in_place || getpid() != owner)
    return in_place;
  {
    const Changing turn; // what was seen may have been a hook's doing
    if (native_state != Native::on)
      return false;
    in_place = true;
    for (const int signal : both)
      in_place &= as_left(signal, in_kernel(signal));
    if (in_place)
      return true;
    give_back();
  }
  if (const Listener tell = listener.exchange(nullptr))
    tell();
  return false;
}

int program_sigaction(int signal, const struct sigaction* now, struct sigaction* was) noexcept {
  struct sigaction wanted{};
  if (now != nullptr)
    wanted = *now; // a fault on what the program gave is the program's, so not below
  struct sigaction before{};
  int rc = 0;
  const auto change = [&](bool ours) {
    const struct sigaction act = in_kernel(signal);
    before = is_ours(act) ? stored_of(signal).programs(act) : act;
    if (now == nullptr)
      return;
    if (is_ours(wanted)) // it asked the kernel itself, and gives back what it was told
      wanted = stored_of(signal).programs(wanted);
    if (ours && (!as_left(signal, act) || !Stored::fits(wanted))) {
      give_back();
      ours = false;
    }
    rc = ours ? install(signal, wanted, Stored(wanted)) : real_sigaction(signal, &wanted, nullptr);
  };
  // A child made without handlers of fork has dispositions of its own, in the kernel alone, and the
  // lock, if it shares memory, with its parent.
  if (const pid_t process = owner; process != 0 && process != getpid()) {
    change(false);
  } else {
    const Changing turn;
    const Native state = native_state;
    change(state == Native::on || state == Native::ignored);
  }
  if (rc == 0 && was != nullptr) { // no more of it than the C library writes
    was->sa_handler = before.sa_handler;
    memcpy(&was->sa_mask, &before.sa_mask, sizeof(uint64_t));
    was->sa_flags = before.sa_flags;
    was->sa_restorer = before.sa_restorer;
  }
  return rc;
}

#else

bool mirrored(int /*signal*/) noexcept {
  return false;
}
void when_lost(Listener /*to*/) noexcept {}
void take_over() noexcept {
  native_state = Native::lost;
}
bool handlers_in_place() noexcept {
  return false;
}
int program_sigaction(int signal, const struct sigaction* now, struct sigaction* was) noexcept {
  return sigaction(signal, now, was);
}

#endif

} // namespace adverb::memory

#if defined(ADVERB_NATIVE_COPY)
void* adverb_handler_of(int signal, siginfo_t* info, void* context) noexcept {
  using namespace adverb::memory;
  // Not one that somebody sent, nor one that tells of a bad page at its leisure.
  const bool fault = info->si_code > 0 && !(signal == SIGBUS && info->si_code == BUS_MCEERR_AO);
  auto& rip = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
  const auto at = static_cast<uint64_t>(rip);
  if (fault && at >= reinterpret_cast<uint64_t>(adverb_copy_begin) &&
      at < reinterpret_cast<uint64_t>(adverb_copy_end)) {
    rip = static_cast<greg_t>(reinterpret_cast<uint64_t>(adverb_copy_failed));
    return nullptr;
  }
  const KeepErrno keep;
  mask_may_change(); // in the handler, and for good if it leaves by siglongjmp
  const Stored theirs = take(signal);
  if (theirs.is_ignored() && !fault)
    return nullptr;
  if (!theirs.is_default() && !theirs.is_ignored())
    return theirs.handler();
  make_default(signal);
  // A memory fault happens again, and the kernel says and dumps what it would have. What was sent,
  // or is the kernel's own idea (SI_KERNEL), does not: it is sent again, to arrive when this
  // returns.
  if (!fault || info->si_code == SI_KERNEL) {
    const uint64_t mask = uint64_t{1} << (signal - 1);
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, &mask, nullptr, sizeof mask);
    syscall(SYS_rt_tgsigqueueinfo, getpid(), static_cast<pid_t>(syscall(SYS_gettid)), signal, info);
  }
  return nullptr;
}
#endif
