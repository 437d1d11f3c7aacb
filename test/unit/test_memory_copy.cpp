// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Copies to and from memory that the program may have unmapped or protected.
#include "catch.h"
#include "memory/copy.h"

#include <atomic>
#include <csignal>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace adverb;

namespace {

constexpr size_t page = 4096;

// Pages with a hole behind them.
class Pages {
public:
  explicit Pages(size_t count) : count_(count) {
    at_ = static_cast<std::byte*>(mmap(nullptr, (count + 1) * page, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    munmap(at_ + count * page, page);
  }
  ~Pages() { munmap(at_, count_ * page); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* operator[](size_t index) const { return at_ + index * page; }
  void protect(size_t index, int rights) const { mprotect((*this)[index], page, rights); }

private:
  std::byte* at_;
  size_t count_;
};

using Write = bool (*)(void*, const void*, size_t) noexcept;

// Runs `body` in a process of its own, whose handlers of signals are then its own too.
template <typename Body> int child(Body&& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    alarm(20);
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return status;
}

bool exited_with(int status, int code) {
  return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

// A fault that no compiler or sanitizer has an opinion on.
void fault() {
  auto* nowhere = static_cast<volatile char*>(
      mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  *nowhere = 1;
}

} // namespace

TEST_CASE("bytes arrive whole at every offset and length") {
  const Pages pages(2);
  std::vector<char> source(300);
  for (size_t i = 0; i < source.size(); ++i)
    source[i] = static_cast<char>(i * 7 + 1);
  for (const Write write : {&memory::write, &memory::write_in_order})
    for (size_t offset = 0; offset < 17; ++offset)
      for (size_t bytes = 0; bytes < 260; ++bytes) {
        std::byte* to = pages[1] - 40 + offset; // straddles the page's end
        memset(to - 1, 0x55, bytes + 2);
        REQUIRE(write(to, source.data(), bytes));
        REQUIRE(memcmp(to, source.data(), bytes) == 0);
        REQUIRE(to[-1] == std::byte{0x55});
        REQUIRE(to[bytes] == std::byte{0x55});
        std::vector<char> back(bytes + 1, 0x33);
        REQUIRE(memory::read(back.data(), to, bytes));
        REQUIRE(memcmp(back.data(), to, bytes) == 0);
        REQUIRE(back[bytes] == 0x33);
      }
}

TEST_CASE("memory that is gone or protected makes a copy fail, not the process") {
  const Pages pages(3);
  std::vector<char> buffer(2 * page, 1);
  const int before = errno = 1234;
  SECTION("unmapped") {
    CHECK_FALSE(memory::read(buffer.data(), pages[3], 1));
    CHECK_FALSE(memory::write(pages[3], buffer.data(), 1));
    for (size_t bytes = 1; bytes <= 16; ++bytes)
      CHECK_FALSE(memory::write_in_order(pages[3], buffer.data(), bytes));
  }
  SECTION("read only") {
    pages.protect(1, PROT_READ);
    CHECK(memory::read(buffer.data(), pages[1], page));
    CHECK_FALSE(memory::write(pages[1], buffer.data(), 1));
    for (size_t bytes = 1; bytes <= 16; ++bytes)
      CHECK_FALSE(memory::write_in_order(pages[1] + 8, buffer.data(), bytes));
    CHECK(pages[1][8] == std::byte{0});
  }
  SECTION("no access at all") {
    pages.protect(1, PROT_NONE);
    CHECK_FALSE(memory::read(buffer.data(), pages[1], 8));
    CHECK_FALSE(memory::write_in_order(pages[1], buffer.data(), 8));
  }
  SECTION("from good into bad") {
    for (const size_t inside : {size_t{1}, size_t{8}, size_t{100}, page})
      for (const size_t beyond : {size_t{1}, size_t{7}, size_t{8}, size_t{9}}) {
        CHECK_FALSE(memory::read(buffer.data(), pages[3] - inside, inside + beyond));
        CHECK_FALSE(memory::write(pages[3] - inside, buffer.data(), inside + beyond));
        CHECK_FALSE(memory::write_in_order(pages[3] - inside, buffer.data(), inside + beyond));
      }
  }
  SECTION("addresses that no process has") {
    for (const uint64_t address : {uint64_t{0}, UINT64_MAX - 15, uint64_t{1} << 63}) {
      auto* at = reinterpret_cast<void*>(address);
      CHECK_FALSE(memory::read(buffer.data(), at, 8));
      CHECK_FALSE(memory::write(at, buffer.data(), 8));
      CHECK_FALSE(memory::write_in_order(at, buffer.data(), 8));
      CHECK_FALSE(memory::write_in_order(at, buffer.data(), 64));
    }
  }
  CHECK(errno == before);
}

TEST_CASE("a reader never sees half of an aligned word") {
  const Pages pages(1);
  auto* word = reinterpret_cast<std::atomic<uint64_t>*>(pages[0] + 64);
  std::atomic<bool> over{false};
  // Looks that met another word than the one before: both were under way at once.
  std::atomic<uint64_t> others{0};
  uint64_t torn = 0;
  std::thread reader([&] {
    for (uint64_t before = 0; !over;) {
      const uint64_t v = word->load(std::memory_order_relaxed);
      torn += v != 0 && v != UINT64_MAX;
      others += v != before ? 1 : 0;
      before = v;
    }
  });
  for (uint64_t i = 0; i < 200000 || others < 100; ++i) {
    const uint64_t v = i % 2 == 0 ? UINT64_MAX : 0;
    if (!memory::write_in_order(word, &v, sizeof v))
      break;
  }
  over = true;
  reader.join();
  CHECK(torn == 0);
  CHECK(others >= 100);
}

TEST_CASE("who sees the end of a message sees all of it") {
  const Pages pages(2);
  constexpr size_t words = 40;
  auto* message = reinterpret_cast<std::atomic<uint64_t>*>(pages[1] - 64);
  std::atomic<uint64_t> seen{0};
  std::atomic<bool> give_up{false};
  uint64_t early = 0;
  constexpr uint64_t rounds = 300;
  std::thread reader([&] {
    for (uint64_t n = 1; n <= rounds && !give_up; ++n) {
      while (message[words - 1].load(std::memory_order_acquire) != n)
        if (give_up)
          return;
      for (size_t i = 0; i < words; ++i)
        early += message[i].load(std::memory_order_relaxed) != n;
      seen = n;
    }
  });
  for (uint64_t n = 1; n <= rounds; ++n) {
    const std::vector<uint64_t> body(words, n);
    if (!memory::write_in_order(message, body.data(), words * 8)) {
      give_up = true;
      break;
    }
    while (seen != n)
      std::this_thread::yield();
  }
  reader.join();
  CHECK(early == 0);
  CHECK(seen == rounds);
}

TEST_CASE("faults of the program's own reach the handler it had, or end it as they would have") {
  char byte = 1;
  const Pages pages(1);
  const auto use = [&] { // makes our handler be installed
    if (!memory::write_in_order(pages[0], &byte, 1) || memory::write_in_order(pages[1], &byte, 1))
      _exit(1);
  };
  CHECK(exited_with(child([&] {
                      signal(SIGSEGV, [](int) { _exit(42); });
                      use();
                      fault();
                    }),
                    42));
  CHECK(exited_with(child([&] {
                      struct sigaction act{};
                      act.sa_flags = SA_SIGINFO;
                      act.sa_sigaction = [](int signal, siginfo_t* info, void*) {
                        _exit(signal == SIGSEGV && info->si_addr != nullptr ? 43 : 1);
                      };
                      sigaction(SIGSEGV, &act, nullptr);
                      use();
                      fault();
                    }),
                    43));
  const int status = child([&] {
    use();
    fault();
  });
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
}

TEST_CASE("a handler the program installs later stays, and is never called for a copy of ours") {
  char byte = 1;
  const Pages pages(1);
  CHECK(exited_with(child([&] {
                      memory::write_in_order(pages[0], &byte, 1);
                      signal(SIGSEGV, [](int) { _exit(44); });
                      signal(SIGBUS, [](int) { _exit(44); });
                      if (!memory::write_in_order(pages[0], &byte, 1) ||
                          memory::write_in_order(pages[1], &byte, 1))
                        _exit(1);
                      struct sigaction now{};
                      sigaction(SIGSEGV, nullptr, &now);
                      if (now.sa_handler == SIG_DFL || (now.sa_flags & SA_SIGINFO) != 0)
                        _exit(2);
                      fault();
                    }),
                    44));
}

TEST_CASE("a thread that blocks the fault's signals copies all the same") {
  char bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const Pages pages(1);
  CHECK(exited_with(child([&] {
                      sigset_t all;
                      sigfillset(&all);
                      sigprocmask(SIG_BLOCK, &all, nullptr);
                      if (!memory::write_in_order(pages[0], bytes, 8) ||
                          memcmp(pages[0], bytes, 8) != 0)
                        _exit(1);
                      if (memory::write_in_order(pages[1], bytes, 8))
                        _exit(2);
                    }),
                    0));
}

#if defined(__SANITIZE_ADDRESS__)
// The kernel copies, and the sanitizer does not see it.
TEST_CASE("a copy to or from memory that was freed is reported where the sanitizer runs") {
  const int what = GENERATE(0, 1, 2);
  const pid_t child = fork();
  if (child == 0) {
    close(2);
    auto* freed = new std::byte[64];
    delete[] freed;
    std::byte own[64]{};
    if (what == 0)
      memory::read(own, freed, sizeof own);
    else if (what == 1)
      memory::write(freed, own, sizeof own);
    else
      memory::write_in_order(freed, own, 8);
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK_FALSE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}
#endif
