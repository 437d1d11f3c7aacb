// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Hooks of the C library: dispositions of SIGSEGV and SIGBUS are the program's own as it sees them
// (memory/dispositions.h), and a thread that changes its mask has it looked at before the next
// native copy. Everything else goes to whose turn is next. Like what they stand for they may be
// called from signal handlers, and before any constructor.
#include "memory/dispositions.h"
#include "memory/native_copy.h"

#if defined(ADVERB_NATIVE_COPY)

#include <atomic>
#include <cerrno>
#include <csignal>
#include <dlfcn.h>

namespace adverb::interpose {
namespace {

// What comes after adverb. Looked up by the constructor: dlsym() is nothing for a signal handler.
struct Next {
#define SIGNALS(ret, name, node, params) ret(*name) params;
#include "interpose/signals.def"
};

const Next& next() noexcept {
  static Next found;
  static std::atomic<bool> looked{false};
  if (!looked.load(std::memory_order_acquire)) {
#define SIGNALS(ret, name, node, params)                                                           \
  found.name = reinterpret_cast<decltype(Next::name)>(dlsym(RTLD_NEXT, #name));
#include "interpose/signals.def"
    looked.store(true, std::memory_order_release);
  }
  return found;
}

__attribute__((constructor)) void look_up() {
  next();
}

// The signals of which siginterrupt() said that they interrupt.
std::atomic<unsigned> interrupting{0};

unsigned bit(int signal) noexcept {
  return signal == SIGBUS ? 2 : 1;
}

// As the C library's functions of these names make a disposition of a handler.
sighandler_t change(int signal, sighandler_t handler, int flags, bool blocks_itself) noexcept {
  if (handler == SIG_ERR) {
    errno = EINVAL;
    return SIG_ERR;
  }
  struct sigaction act{};
  act.sa_handler = handler;
  act.sa_flags = flags;
  sigemptyset(&act.sa_mask);
  if (blocks_itself)
    sigaddset(&act.sa_mask, signal);
  struct sigaction was{};
  return memory::program_sigaction(signal, &act, &was) == 0 ? was.sa_handler : SIG_ERR;
}

sighandler_t bsd(int signal, sighandler_t handler) noexcept {
  return change(signal, handler, (interrupting & bit(signal)) != 0 ? 0 : SA_RESTART, true);
}

sighandler_t sysv(int signal, sighandler_t handler) noexcept {
  constexpr int sa_interrupt = 0x20000000;
  return change(signal, handler, static_cast<int>(SA_RESETHAND) | SA_NODEFER | sa_interrupt, false);
}

// Of a thread's mask before and after a function changes it: also what a signal handler saw of it
// in between is not to be believed.
class MaskChange {
public:
  explicit MaskChange(bool concerns) noexcept : concerns_(concerns) { tell(); }
  ~MaskChange() { tell(); }
  MaskChange(const MaskChange&) = delete;
  MaskChange& operator=(const MaskChange&) = delete;

private:
  void tell() const noexcept {
    if (concerns_)
      memory::mask_may_change();
  }
  bool concerns_;
};

// Setting the whole mask to one without the two is what follows each time they were blocked for a
// while: that thread's last look was a real one, or found them open.
bool concerns(int how, const sigset_t* set) noexcept {
  return set != nullptr && (sigismember(set, SIGSEGV) == 1 || sigismember(set, SIGBUS) == 1 ||
                            (how == SIG_SETMASK && !memory::mask_look().clear));
}

} // namespace
} // namespace adverb::interpose

using namespace adverb;
using namespace adverb::interpose;

#define EXPORTED(ret, name, params)                                                                \
  extern "C" __attribute__((                                                                       \
      visibility("default"))) ret adverb_hook_##name params noexcept __asm__(#name);               \
  ret adverb_hook_##name params noexcept

EXPORTED(int, sigaction, (int signal, const struct sigaction* now, struct sigaction* was)) {
  return memory::mirrored(signal) ? memory::program_sigaction(signal, now, was)
                                  : next().sigaction(signal, now, was);
}

EXPORTED(int, __sigaction, (int signal, const struct sigaction* now, struct sigaction* was)) {
  return memory::mirrored(signal) ? memory::program_sigaction(signal, now, was)
                                  : next().__sigaction(signal, now, was);
}

EXPORTED(sighandler_t, signal, (int signal, sighandler_t handler)) {
  return memory::mirrored(signal) ? bsd(signal, handler) : next().signal(signal, handler);
}

EXPORTED(sighandler_t, ssignal, (int signal, sighandler_t handler)) {
  return memory::mirrored(signal) ? bsd(signal, handler) : next().ssignal(signal, handler);
}

EXPORTED(sighandler_t, bsd_signal, (int signal, sighandler_t handler)) {
  return memory::mirrored(signal) ? bsd(signal, handler) : next().bsd_signal(signal, handler);
}

EXPORTED(sighandler_t, sysv_signal, (int signal, sighandler_t handler)) {
  return memory::mirrored(signal) ? sysv(signal, handler) : next().sysv_signal(signal, handler);
}

EXPORTED(sighandler_t, __sysv_signal, (int signal, sighandler_t handler)) {
  return memory::mirrored(signal) ? sysv(signal, handler) : next().__sysv_signal(signal, handler);
}

EXPORTED(sighandler_t, sigset, (int signal, sighandler_t handler)) {
  if (!memory::mirrored(signal))
    return next().sigset(signal, handler);
  const MaskChange mask(true);
  sigset_t one;
  sigset_t before;
  sigemptyset(&one);
  sigaddset(&one, signal);
  struct sigaction was{};
  if (handler == SIG_HOLD) {
    if (next().sigprocmask(SIG_BLOCK, &one, &before) != 0)
      return SIG_ERR;
    if (sigismember(&before, signal) == 1)
      return SIG_HOLD;
    return memory::program_sigaction(signal, nullptr, &was) == 0 ? was.sa_handler : SIG_ERR;
  }
  const sighandler_t had = change(signal, handler, 0, false);
  if (had == SIG_ERR || next().sigprocmask(SIG_UNBLOCK, &one, &before) != 0)
    return SIG_ERR;
  return sigismember(&before, signal) == 1 ? SIG_HOLD : had;
}

EXPORTED(int, sigignore, (int signal)) {
  if (!memory::mirrored(signal))
    return next().sigignore(signal);
  return change(signal, SIG_IGN, 0, false) == SIG_ERR ? -1 : 0;
}

EXPORTED(int, siginterrupt, (int signal, int interrupt)) {
  if (!memory::mirrored(signal))
    return next().siginterrupt(signal, interrupt);
  struct sigaction act{};
  if (memory::program_sigaction(signal, nullptr, &act) != 0)
    return -1;
  if (interrupt != 0) {
    interrupting |= bit(signal);
    act.sa_flags &= ~SA_RESTART;
  } else {
    interrupting &= ~bit(signal);
    act.sa_flags |= SA_RESTART;
  }
  return memory::program_sigaction(signal, &act, nullptr);
}

EXPORTED(int, pthread_sigmask, (int how, const sigset_t* set, sigset_t* was)) {
  const MaskChange mask(concerns(how, set));
  return next().pthread_sigmask(how, set, was);
}

extern "C" __attribute__((visibility("default"))) int
adverb_hook_older_pthread_sigmask(int how, const sigset_t* set, sigset_t* was) noexcept {
  return adverb_hook_pthread_sigmask(how, set, was);
}
__asm__(".symver adverb_hook_older_pthread_sigmask, pthread_sigmask@GLIBC_2.2.5");

EXPORTED(int, sigprocmask, (int how, const sigset_t* set, sigset_t* was)) {
  const MaskChange mask(concerns(how, set));
  return next().sigprocmask(how, set, was);
}

EXPORTED(int, sigblock, (int signals)) {
  const MaskChange mask(true);
  return next().sigblock(signals);
}

EXPORTED(int, sigsetmask, (int signals)) {
  const MaskChange mask(true);
  return next().sigsetmask(signals);
}

EXPORTED(int, sighold, (int signal)) {
  const MaskChange mask(memory::mirrored(signal));
  return next().sighold(signal);
}

EXPORTED(int, sigrelse, (int signal)) {
  const MaskChange mask(memory::mirrored(signal));
  return next().sigrelse(signal);
}

#endif
