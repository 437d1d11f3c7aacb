// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Native copies under a guard: what a fault leaves undone, and whose faults are whose.
#include "catch.h"
#include "memory/copy.h"
#include "memory/dispositions.h"
#include "memory/guard.h"
#include "memory/native_copy.h"

#include <atomic>
#include <csignal>
#include <cstring>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

// Programs use them all the same.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#if defined(ADVERB_NATIVE_COPY)

using namespace adverb;

namespace {

constexpr size_t page = 4096;
constexpr size_t mebibyte = 1 << 20;

std::byte* map(size_t bytes, int rights) {
  return static_cast<std::byte*>(mmap(nullptr, bytes, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

// A MiB with pages of no access on both sides.
struct Island {
  std::byte* all = map(mebibyte + 2 * page, PROT_NONE);
  std::byte* begin = all + page;
  std::byte* end = begin + mebibyte;
  Island() { mprotect(begin, mebibyte, PROT_READ | PROT_WRITE); }
  ~Island() { munmap(all, mebibyte + 2 * page); }
  Island(const Island&) = delete;
  Island& operator=(const Island&) = delete;
};

int child(void (*body)()) {
  const pid_t pid = fork();
  if (pid == 0) {
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    alarm(120);
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return status;
}

// What the kernel has, past every hook.
struct Kernel {
  void* handler;
  unsigned long flags;
  void* restorer;
  uint64_t mask;
};

Kernel raw(int signal) {
  Kernel k{};
  syscall(SYS_rt_sigaction, signal, nullptr, &k, sizeof k.mask);
  return k;
}

void require(bool it, int code) {
  if (!it)
    _exit(code);
}

std::byte* nowhere = nullptr; // a page without access
std::byte* somewhere = nullptr;

bool copies_natively() {
  const uint64_t value = 7;
  return memory::write_in_order(somewhere, &value, 8) && memory::native_now();
}

// In a child: pages, and a copy that went well, so that the handlers are adverb's.
void start() {
  nowhere = map(page, PROT_NONE);
  somewhere = map(page, PROT_READ | PROT_WRITE);
  require(copies_natively(), 100);
}

std::atomic<int> reached{0};

} // namespace

TEST_CASE("a copy into bad memory tells what it did not copy, wherever that begins") {
  REQUIRE(memory::native_now());
  const Island from;
  const Island to;
  memset(from.begin, 0x5a, mebibyte);
  for (size_t good = 0; good < mebibyte; good += 64) {
    if (memory::copy_native(to.end - good, from.begin, mebibyte) != mebibyte - good)
      FAIL("target bad after " << good);
    if (good != 0 &&
        (to.end[-1] != std::byte{0x5a} || to.end[-static_cast<ptrdiff_t>(good)] != std::byte{0x5a}))
      FAIL("target not written up to " << good);
    memset(to.end - good, 0, std::min<size_t>(good, page));
  }
}

TEST_CASE("a copy out of bad memory tells what it did not copy, wherever that begins") {
  REQUIRE(memory::native_now());
  const Island from;
  const Island to;
  for (size_t good = 0; good < mebibyte; good += 64)
    if (memory::copy_native(to.begin, from.end - good, mebibyte) != mebibyte - good)
      FAIL("source bad after " << good);
}

TEST_CASE("what a small copy says is copied is, at every length and place of the fault") {
  REQUIRE(memory::native_now());
  const Island from;
  const Island to;
  for (size_t i = 0; i < 2 * page; ++i)
    from.begin[i] = static_cast<std::byte>(i * 7 + 1);
  for (size_t bytes = 1; bytes <= 200; ++bytes)
    for (size_t good = 0; good <= bytes; ++good) {
      std::byte* at = to.end - good;
      memset(at, 0, good);
      const size_t left = memory::copy_native(at, from.begin, bytes);
      REQUIRE(left <= bytes);
      REQUIRE(left >= bytes - good);
      REQUIRE(memcmp(at, from.begin, bytes - left) == 0);
      if (good == bytes)
        REQUIRE(left == 0);
      REQUIRE(memory::copy_native(to.begin, from.end - good, bytes) >= bytes - good);
    }
  for (size_t bytes = 1; bytes <= 8; ++bytes) {
    CHECK(memory::store_native(to.end, from.begin, bytes) == bytes);
    CHECK(memory::store_native(to.end - 8, from.begin, bytes) == 0);
  }
}

TEST_CASE("what a copy over a short distance says is copied is, wherever the fault is") {
  REQUIRE(memory::native_now());
  const Island from;
  const Island to;
  for (size_t i = 0; i < 4 * page; ++i)
    from.begin[i] = static_cast<std::byte>(i * 7 + i / page);
  for (size_t distance = 0; distance <= 66; ++distance)
    for (const size_t bytes : {128, 191, 192, 255, 1000, 4096, 4097 + 63, 9001}) {
      // The target begins `distance` behind the source, pages aside.
      const std::byte* source = from.begin + 2 * page - distance - bytes % page;
      for (const size_t good : {bytes, bytes - 1, bytes - 64, bytes / 2, size_t{64}, size_t{1}}) {
        std::byte* at = to.end - good;
        const std::byte* begin = source + (bytes - good) % page;
        memset(at, 0, good);
        REQUIRE((reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(begin)) % page ==
                distance);
        const size_t left = memory::copy_native(at, begin, bytes);
        REQUIRE(left <= bytes);
        REQUIRE(left >= bytes - good);
        REQUIRE(left < bytes - good + 64);
        REQUIRE(memcmp(at, begin, bytes - left) == 0);
      }
    }
}

TEST_CASE("only faults within the copies are adverb's") {
  const int status = child([] {
    struct sigaction act{};
    act.sa_flags = SA_SIGINFO;
    act.sa_sigaction = [](int, siginfo_t*, void*) { ++reached; };
    sigaction(SIGSEGV, &act, nullptr);
    start();
    const auto handler = reinterpret_cast<void (*)(int, siginfo_t*, void*)>(raw(SIGSEGV).handler);
    const auto begin = reinterpret_cast<uintptr_t>(adverb_copy_begin);
    const auto end = reinterpret_cast<uintptr_t>(adverb_copy_end);
    const auto deliver = [&](uintptr_t at, int code) {
      siginfo_t info{};
      info.si_code = code;
      ucontext_t context{};
      auto& rip = context.uc_mcontext.gregs[REG_RIP];
      rip = static_cast<greg_t>(at);
      const int before = reached;
      handler(SIGSEGV, &info, &context);
      const bool moved = rip == reinterpret_cast<greg_t>(adverb_copy_failed);
      return moved && reached == before ? 'a' : !moved && reached == before + 1 ? 'p' : '?';
    };
    require(deliver(begin, SEGV_MAPERR) == 'a', 1);
    require(deliver(end - 1, SEGV_ACCERR) == 'a', 2);
    require(deliver(end, SEGV_MAPERR) == 'p', 3);
    require(deliver(begin - 1, SEGV_MAPERR) == 'p', 4);
    // Sent by somebody just then.
    for (const int code : {SI_USER, SI_TKILL, SI_QUEUE})
      require(deliver(begin, code) == 'p', 5);
    require(deliver(begin, SI_KERNEL) == 'a', 6);
  });
  CHECK(status == 0);
}

TEST_CASE("a fault caught does not end the next copy's being native") {
  CHECK(child([] {
          start();
          for (int i = 0; i < 100; ++i) {
            uint64_t value = 1;
            require(!memory::write(nowhere, &value, 8), 1);
            require(!memory::read(&value, nowhere, 8), 2);
            require(copies_natively(), 3);
          }
          require(raw(SIGSEGV).handler != nullptr, 4);
        }) == 0);
}

TEST_CASE("the program's flags and mask are the kernel's handler's, and answered as it set them") {
  CHECK(child([] {
          start();
          struct sigaction act{};
          struct sigaction was{};
          act.sa_handler = [](int) {};
          act.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART | SA_NODEFER;
          sigaddset(&act.sa_mask, SIGUSR2);
          require(sigaction(SIGBUS, &act, nullptr) == 0, 1);
          const Kernel has = raw(SIGBUS);
          require(has.mask == 1ul << (SIGUSR2 - 1), 2);
          require((has.flags & SA_SIGINFO) != 0 && (has.flags & SA_RESETHAND) == 0, 3);
          require((has.flags & SA_NODEFER) != 0 && (has.flags & SA_RESTART) != 0, 4);
          require((has.flags & SA_ONSTACK) == 0, 5);
          require(sigaction(SIGBUS, nullptr, &was) == 0 && was.sa_handler == act.sa_handler, 6);
          constexpr int restorer = 0x04000000;
          require((was.sa_flags & ~restorer) == act.sa_flags, 7);
          require(copies_natively(), 8);
          // Ignored: the kernel's own, so that exec hands it on.
          require(signal(SIGBUS, SIG_IGN) == act.sa_handler, 9);
          require(raw(SIGBUS).handler == reinterpret_cast<void*>(SIG_IGN), 10);
          require(!copies_natively(), 11);
          require(signal(SIGBUS, SIG_DFL) == SIG_IGN, 12);
          require(copies_natively(), 13);
          require(signal(SIGBUS, SIG_DFL) == SIG_DFL, 14);
        }) == 0);
}

TEST_CASE("a thread that blocks the signals does not copy natively, and another one does") {
  CHECK(child([] {
          start();
          for (const int one : {SIGSEGV, SIGBUS}) {
            sigset_t set;
            sigemptyset(&set);
            sigaddset(&set, one);
            pthread_sigmask(SIG_BLOCK, &set, nullptr);
            require(!copies_natively(), 1);
            uint64_t value = 1;
            require(!memory::write(nowhere, &value, 8), 2);
            sigset_t none; // and a thread inherits it
            sigemptyset(&none);
            std::thread([&] {
              require(!copies_natively(), 3);
              pthread_sigmask(SIG_SETMASK, &none, nullptr);
              require(copies_natively(), 4);
              require(!memory::write(nowhere, &value, 8), 5);
            }).join();
            require(!copies_natively(), 6);
            sigprocmask(SIG_UNBLOCK, &set, nullptr);
            require(copies_natively(), 7);
            sighold(one);
            require(!copies_natively(), 8);
            sigrelse(one);
            require(copies_natively(), 9);
            require(sigset(one, SIG_HOLD) == SIG_DFL, 10);
            require(!copies_natively(), 11);
            require(sigset(one, SIG_DFL) == SIG_HOLD, 12);
            require(copies_natively(), 13);
          }
        }) == 0);
}

TEST_CASE("a handler of the program's, in which the signal is blocked, does not copy natively") {
  CHECK(child([] {
          struct sigaction act{};
          act.sa_handler = [](int) {
            uint64_t value = 1;
            require(!copies_natively(), 1);
            require(!memory::write(nowhere, &value, 8), 2);
            mprotect(nowhere, page, PROT_READ | PROT_WRITE);
            ++reached;
          };
          sigaction(SIGSEGV, &act, nullptr);
          start();
          *reinterpret_cast<volatile char*>(nowhere) = 1;
          require(reached == 1, 3);
        }) == 0);
}

TEST_CASE("an aligned word is never half written, after any instruction") {
  CHECK(child([] {
          start();
          static std::atomic<unsigned> steps{0};
          static volatile uint64_t* const word = reinterpret_cast<volatile uint64_t*>(somewhere);
          *word = 0;
          struct sigaction act{};
          act.sa_handler = [](int) {
            const uint64_t seen = *word;
            if (seen != 0 && seen != UINT64_MAX)
              _exit(1);
            ++steps;
          };
          sigaction(SIGTRAP, &act, nullptr);
          const uint64_t value = UINT64_MAX;
          // The trap flag; pushing must not meet what lies below the stack's end.
          asm volatile("leaq -128(%%rsp), %%rsp\n pushfq\n orq $0x100, (%%rsp)\n popfq\n"
                       "leaq 128(%%rsp), %%rsp" ::
                           : "memory", "cc");
          const bool done = memory::write_in_order(somewhere, &value, 8);
          asm volatile("leaq -128(%%rsp), %%rsp\n pushfq\n andq $~0x100, (%%rsp)\n popfq\n"
                       "leaq 128(%%rsp), %%rsp" ::
                           : "memory", "cc");
          require(done && *word == value, 2);
          require(steps > 10, 3);
        }) == 0);
}

TEST_CASE("a mask changed past the hooks is found after ten milliseconds") {
  CHECK(child([] {
          start();
          const uint64_t segv = 1ul << (SIGSEGV - 1);
          syscall(SYS_rt_sigprocmask, SIG_BLOCK, &segv, nullptr, 8);
          memory::mask_look().at -= 10'000'000; // as if they had passed
          require(!copies_natively(), 1);
          uint64_t value = 1;
          require(!memory::write(nowhere, &value, 8), 2);
        }) == 0);
}

TEST_CASE("a handler installed past the hooks is found after ten milliseconds, and left alone") {
  CHECK(child([] {
          static std::atomic<int> told{0};
          memory::when_lost([]() noexcept { ++told; });
          signal(SIGBUS, [](int) { _exit(7); });
          start();
          Kernel other = raw(SIGSEGV);
          other.handler = reinterpret_cast<void*>(+[](int) { _exit(0); });
          syscall(SYS_rt_sigaction, SIGSEGV, &other, nullptr, 8);
          memory::mask_look().at -= 10'000'000; // as if they had passed
          require(!memory::native_now() && told == 1, 2);
          require(raw(SIGSEGV).handler == other.handler, 3);
          require(std::strncmp(memory::method(), "native", 6) != 0, 4);
          // What it had of the other one is the kernel's again.
          struct sigaction bus{};
          sigaction(SIGBUS, nullptr, &bus);
          require(reinterpret_cast<void*>(bus.sa_handler) == raw(SIGBUS).handler, 5);
          uint64_t value = 1;
          require(!memory::write(nowhere, &value, 8), 6);
          require(memory::write_in_order(somewhere, &value, 8), 7);
          sigset_t none;
          sigemptyset(&none);
          pthread_sigmask(SIG_SETMASK, &none, nullptr);
          require(!memory::native_now() && told == 1, 8);
          *reinterpret_cast<volatile char*>(nowhere) = 1;
          _exit(9);
        }) == 0);
}

TEST_CASE("changes of dispositions and copies that fault do not disturb each other") {
  CHECK(child([] {
          start();
          std::atomic<bool> over{false};
          std::thread changes([&] {
            for (int i = 0; i < 20000; ++i)
              signal(SIGSEGV, i % 2 == 0 ? SIG_DFL : [](int) { _exit(1); });
            over = true;
          });
          uint64_t value = 1;
          while (!over)
            require(!memory::write(nowhere, &value, 8), 2);
          changes.join();
          require(memory::native_now(), 3);
        }) == 0);
}

#endif
