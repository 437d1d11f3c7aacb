// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Who has pages registered hears of it when their addresses come to mean others, before the call
// that does that has returned.
#include "catch.h"
#include "memory/mappings.h"
#include "memory/userfault.h"
#include "skip.h"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <string>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using namespace adverb::memory;

constexpr size_t page = 4096;
constexpr size_t bytes = 8 << 20;

Range range_of(const void* at, size_t length) {
  const auto from = reinterpret_cast<uintptr_t>(at);
  return {from, from + length};
}

struct Watched {
  std::vector<int> owned;
  std::string why;
  UserfaultMonitor monitor{
      {[this](int fd) { owned.push_back(fd); }, [this](const std::string& w) { why = w; },
       [this](Stripes where) { before |= where; }, [this](Stripes where) { after |= where; }}};
  std::atomic<Stripes> before{0};
  std::atomic<Stripes> after{0};
  uint64_t seen = 0;

  bool watch(Range range) { return monitor.watch(range, range); }
  // That `change` is heard of, and of that range.
  bool hears(Range range, const std::function<void()>& change) {
    monitor.news(seen, [](const Range&, bool) {});
    const uint64_t before = monitor.epoch();
    const uint64_t told = monitor.told();
    change();
    // At once: the call that has returned was waited for.
    const bool other = monitor.epoch() != before;
    bool met = false;
    monitor.news(seen, [&](const Range& heard, bool) { met = met || heard.meets(range); });
    CHECK(met == other);
    CHECK(monitor.has_changed(range, told) == met);
    return met;
  }
};

char* fresh(size_t length = bytes) {
  void* p = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(p != MAP_FAILED);
  memset(p, 1, length);
  return static_cast<char*>(p);
}

// Addresses of `stripes` whole ones, of which nothing can be used before use() says so.
struct Room {
  static constexpr uintptr_t stripe = uintptr_t{1} << stripe_bits;
  size_t length;
  void* all;
  char* first; // where one begins
  explicit Room(size_t stripes)
      : length((stripes + 1) * stripe),
        all(mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
        first(reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(all) + stripe - 1) &
                                      ~(stripe - 1))) {
    REQUIRE(all != MAP_FAILED);
  }
  ~Room() { munmap(all, length); }
  static void use(char* at, size_t count) {
    REQUIRE(mprotect(at, count, PROT_READ | PROT_WRITE) == 0);
  }
};

TEST_CASE("it is said before a change, and after it, in which stripes of addresses it is") {
  Watched w;
  const Room room(2);
  // Across the border of two.
  char* const p = room.first + Room::stripe - bytes;
  const Range all = range_of(p, 2 * bytes);
  const uintptr_t border = all.from + bytes;
  Room::use(p, 2 * bytes);
  REQUIRE(w.watch(all));
  CHECK(w.before.load() == 0);
  const Stripes first = stripes_of({all.from, border});
  const Stripes second = stripes_of({border, all.to});
  REQUIRE((first & second) == 0);
  CHECK(w.hears(range_of(p, page), [&] { madvise(p, page, MADV_DONTNEED); }));
  CHECK(w.before.exchange(0) == first);
  CHECK(w.hears(range_of(p + bytes, page), [&] { munmap(p + bytes, page); }));
  CHECK(w.before.exchange(0) == second);
  // What is said after a change is said when the call has returned, perhaps.
  const auto is_said_after = [&](Stripes where) {
    for (int i = 0; i < 120'000 && w.after.load() != where; ++i) // a watchdog of two minutes
      usleep(1000);
    return w.after.exchange(0) == where;
  };
  CHECK(is_said_after(first | second)); // of both
  CHECK(w.hears(all, [&] { munmap(p, 2 * bytes); }));
  CHECK(w.before.exchange(0) == (first | second));
  CHECK(is_said_after(first | second));
}

TEST_CASE("stripes of a range are those that it meets, and all of a long one") {
  constexpr uintptr_t stripe = uintptr_t{1} << stripe_bits;
  CHECK(stripes_of({0, 0}) == 0);
  CHECK(stripes_of({0, 1}) == 1);
  CHECK(stripes_of({0, stripe}) == 1);
  CHECK(stripes_of({stripe - 1, stripe + 1}) == 3);
  CHECK(stripes_of({15 * stripe, 17 * stripe}) == ((1U << 15) | 1));
  CHECK(stripes_of(all_memory) == all_stripes);
}

TEST_CASE("each call that has addresses mean other memory is heard of when it has returned") {
  Watched w;
  char* p = fresh();
  const Range all = range_of(p, bytes);
  REQUIRE(w.watch(all));
  CHECK(w.owned.size() >= 3); // one that reads, one that ends, one for each stripe
  CHECK_FALSE(w.monitor.has_changed(all, 0));

  CHECK(w.hears(range_of(p + page, page), [&] { madvise(p + page, page, MADV_DONTNEED); }));
  CHECK(w.hears(all, [&] { madvise(p, bytes, MADV_FREE); }));
  CHECK(w.hears(range_of(p, page), [&] { munmap(p, page); }));
  CHECK(w.hears(range_of(p + page, page), [&] {
    CHECK(mmap(p + page, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
          p + page);
  }));
  char* moved = nullptr;
  CHECK(w.hears(range_of(p + (bytes / 2), page), [&] {
    moved = static_cast<char*>(mremap(p + (bytes / 2), bytes / 4, bytes, MREMAP_MAYMOVE));
  }));
  CHECK(moved != MAP_FAILED);
  // What still lies where it lay is still heard of.
  CHECK(w.hears(range_of(p + (2 * page), page),
                [&] { madvise(p + (2 * page), page, MADV_DONTNEED); }));
  CHECK(w.hears(all, [&] { munmap(p, bytes); }));
  munmap(moved, bytes);
}

TEST_CASE("what the C library gives back is heard of") {
  Watched w;
  const auto pages_of = [](const void* at, size_t length) {
    const auto from = (reinterpret_cast<uintptr_t>(at) + page) & ~(page - 1);
    return Range{from, from + length - (2 * page)};
  };
  mallopt(M_MMAP_THRESHOLD, 1 << 20); // else it grows, and the second comes from the heap
  void* large = malloc(bytes);
  memset(large, 1, bytes);
  REQUIRE(w.watch(pages_of(large, bytes)));
  CHECK(w.hears(pages_of(large, bytes), [&] { free(large); }));

  large = malloc(bytes);
  memset(large, 1, bytes);
  const Range before = pages_of(large, bytes);
  REQUIRE(w.watch(before));
  void* larger = nullptr;
  CHECK(w.hears(before, [&] { larger = realloc(large, 16 * bytes); }));
  free(larger);

  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  std::vector<void*> pieces;
  for (int i = 0; i < 64; ++i)
    memset(pieces.emplace_back(malloc(1 << 16)), 1, 1 << 16);
  const Range heap{reinterpret_cast<uintptr_t>(pieces.front()),
                   reinterpret_cast<uintptr_t>(pieces.back())};
  REQUIRE(heap.from < heap.to);
  REQUIRE(w.watch(heap));
  CHECK(w.hears(heap, [&] {
    for (void* piece : pieces)
      free(piece);
    malloc_trim(0);
  }));

  std::atomic<uintptr_t> stack{0};
  std::atomic<bool> watched{false};
  std::atomic<bool> go{false};
  std::thread thread([&] {
    char here[64 * page]; // the end of the thread gives up what is below its last frames
    memset(here, 1, sizeof here);
    const uintptr_t at = (reinterpret_cast<uintptr_t>(here) + page) & ~(page - 1);
    watched = w.watch({at, at + page});
    stack = at;
    while (!go)
      std::this_thread::yield();
  });
  while (stack == 0)
    std::this_thread::yield();
  CHECK(w.hears({stack.load(), stack.load() + page}, [&] {
    go = true;
    thread.join();
  }));
  CHECK(watched);
}

TEST_CASE("protecting a page changes no memory, and calls elsewhere are not heard of") {
  Watched w;
  char* p = fresh();
  char* other = fresh();
  REQUIRE(w.watch(range_of(p, page)));
  CHECK_FALSE(w.hears(range_of(p, page), [&] {
    mprotect(p, page, PROT_NONE);
    mprotect(p, page, PROT_READ | PROT_WRITE);
  }));
  CHECK_FALSE(w.hears(range_of(other, bytes), [&] { madvise(other, bytes, MADV_DONTNEED); }));
  munmap(other, bytes);
  munmap(p, bytes);
}

TEST_CASE("what could change unheard is not watched") {
  Watched w;
  const int memory = memfd_create("monitor", MFD_CLOEXEC);
  REQUIRE(ftruncate(memory, bytes) == 0);
  for (const int how : {MAP_SHARED, MAP_PRIVATE}) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, how, memory, 0);
    REQUIRE(p != MAP_FAILED);
    CHECK_FALSE(w.watch(range_of(p, bytes)));
    munmap(p, bytes);
  }
  close(memory);
  void* shared = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK_FALSE(w.watch(range_of(shared, bytes)));
  munmap(shared, bytes);
  // A hole, and nothing at all.
  char* p = fresh();
  munmap(p + page, page);
  CHECK_FALSE(w.watch(range_of(p, 3 * page)));
  CHECK_FALSE(w.watch({}));
  CHECK(w.monitor.watch(range_of(p, page), range_of(p, bytes))); // its neighbours cannot be
  munmap(p, bytes);
}

// A descriptor of the program's own, as it may have.
struct Own {
  int fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1));
  Own() {
    REQUIRE(fd >= 0);
    uffdio_api api{};
    api.api = UFFD_API;
    REQUIRE(ioctl(fd, UFFDIO_API, &api) == 0);
  }
  ~Own() { close(fd); }
  bool listens(const void* at, size_t length, uint64_t mode = UFFDIO_REGISTER_MODE_MISSING) const {
    uffdio_register mine{};
    mine.range = {reinterpret_cast<uintptr_t>(at), length};
    mine.mode = mode;
    return ioctl(fd, UFFDIO_REGISTER, &mine) == 0;
  }
};

TEST_CASE("another userfaultfd of the program's comes first") {
  char* p = fresh();
  const Own own;
  REQUIRE(own.listens(p, bytes));
  Watched w;
  CHECK_FALSE(w.watch(range_of(p, page)));
  munmap(p, bytes);
}

TEST_CASE("of what could not be watched as a whole nothing stays watched") {
  Watched w;
  const Room room(2);
  char* const p = room.first + Room::stripe - bytes;
  Room::use(p, 2 * bytes);
  const Own theirs;
  REQUIRE(theirs.listens(p + bytes, page)); // the first page of the second stripe
  REQUIRE(w.watch(range_of(p, page)));
  CHECK_FALSE(w.watch(range_of(p + (2 * page), bytes)));
  const Own later;
  CHECK(later.listens(p + bytes - page, page)); // of the stripe that the kernel was told of
  CHECK(w.hears(range_of(p, page), [&] { madvise(p, page, MADV_DONTNEED); }));
}

TEST_CASE("what has moved to another stripe is watched there, and nowhere else") {
  Watched w;
  const Room room(2);
  char* const p = room.first;
  char* const to = p + Room::stripe;
  Room::use(p, bytes);
  REQUIRE(w.watch(range_of(p, bytes)));
  CHECK(w.hears(range_of(p, bytes),
                [&] { CHECK(mremap(p, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to); }));
  REQUIRE(w.watch(range_of(to, bytes)));
  w.before = 0;
  CHECK(w.hears(range_of(to, page), [&] { madvise(to, page, MADV_DONTNEED); }));
  CHECK(w.before.load() == stripes_of(range_of(to, page)));
}

TEST_CASE("what has grown as it moved can be watched to its end") {
  // What has grown beyond is refused on a kernel that says of no mapping where it ends.
  if (end_of_mapping(reinterpret_cast<uintptr_t>(&page)) == 0) {
    adverb::test::skip("this kernel does not say where a mapping ends");
    return;
  }
  Watched w;
  const Room room(2);
  char* const p = room.first;
  char* const to = p + Room::stripe;
  Room::use(p, bytes);
  REQUIRE(w.watch(range_of(p, bytes)));
  REQUIRE(mremap(p, bytes, 2 * bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
  REQUIRE(w.watch(range_of(to, 2 * bytes)));
  CHECK(w.hears(range_of(to + bytes, page), [&] { madvise(to + bytes, page, MADV_DONTNEED); }));
}

TEST_CASE("what has grown where it was is left to its end") {
  Watched w;
  char* const p = fresh(2 * bytes);
  REQUIRE(munmap(p + bytes, bytes) == 0);
  REQUIRE(w.watch(range_of(p, bytes)));
  REQUIRE(mremap(p, bytes, 2 * bytes, 0) == p);
  CHECK(w.monitor.forget(range_of(p, 2 * bytes)));
  const Own own;
  CHECK(own.listens(p, 2 * bytes));
  munmap(p, 2 * bytes);
}

// Moved away and back, it is one mapping again with what it was one with.
TEST_CASE("what is watched beside what has moved is told of, if it is not heard of any more") {
  Watched w;
  char* const p = fresh(2 * bytes);
  char* const other = fresh();
  const Range beside = range_of(p + bytes, bytes);
  REQUIRE(w.watch(beside));
  REQUIRE(mremap(p, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, other) == other);
  REQUIRE(w.watch(range_of(other, bytes)));
  const uint64_t told = w.monitor.told();
  REQUIRE(mremap(other, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, p) == p);
  const bool is_told = w.monitor.has_changed(beside, told);
  const bool is_heard =
      w.hears(range_of(p + bytes, page), [&] { madvise(p + bytes, page, MADV_DONTNEED); });
  CHECK((is_told || is_heard));
  munmap(p, 2 * bytes);
}

TEST_CASE("a program's own userfaultfd, where something was watched before, goes on") {
  char* const p = fresh();
  const Own own;
  {
    Watched w;
    REQUIRE(w.watch(range_of(p, bytes)));
    REQUIRE(mmap(p, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                 0) == p);
    REQUIRE(own.listens(p, bytes));
    w.monitor.forget(range_of(p, bytes));
  }
  Watched w; // which could watch what no other one does
  CHECK_FALSE(w.watch(range_of(p, page)));
  munmap(p, bytes);
}

TEST_CASE("what is mapped where something was watched is watched when that is asked for") {
  Watched w;
  char* p = fresh();
  const Range all = range_of(p, bytes);
  REQUIRE(w.watch(all));
  for (int i = 0; i < 3; ++i) {
    CHECK(w.hears(all, [&] {
      CHECK(mmap(p, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                 0) == p);
    }));
    REQUIRE(w.watch(all));
    CHECK(w.hears(range_of(p, page), [&] { madvise(p, page, MADV_DONTNEED); }));
  }
  munmap(p, bytes);
}

TEST_CASE("what nobody wants to hear of any more is given up by and by") {
  Watched w;
  constexpr size_t granule = 2 << 20;
  constexpr size_t pieces = 80;
  auto* p = static_cast<char*>(mmap(nullptr, pieces * granule, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  for (size_t i = 0; i < pieces; ++i) {
    REQUIRE(w.watch(range_of(p + (i * granule), page)));
    w.monitor.unwatch(range_of(p + (i * granule), page));
  }
  // The first is not heard of any more, the last still is.
  CHECK_FALSE(w.hears(range_of(p, page), [&] { madvise(p, page, MADV_DONTNEED); }));
  char* const last = p + ((pieces - 1) * granule);
  CHECK(w.hears(range_of(last, page), [&] { madvise(last, page, MADV_DONTNEED); }));
  munmap(p, pieces * granule);
}

TEST_CASE("what is moved along with its neighbours can be, once nobody listens") {
  Watched w;
  char* p = fresh();
  const Range middle = range_of(p + (2 * page), page);
  REQUIRE(w.watch(middle));
  const uint64_t told = w.monitor.told();
  char* const to = fresh(2 * bytes);
  errno = 0;
  // A kernel that moves several at once does not need it.
  if (mremap(p, bytes, 2 * bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED) {
    CHECK(errno == EFAULT);
    REQUIRE(w.monitor.forget(range_of(p, bytes)));
    CHECK(w.monitor.has_changed(middle, told));
    CHECK(mremap(p, bytes, 2 * bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
  }
  CHECK_FALSE(w.monitor.forget(range_of(p, bytes)));
  w.monitor.unwatch(middle);
  munmap(to, 2 * bytes);
}

TEST_CASE("what has changed in places can be moved along with its neighbours, too") {
  Watched w;
  char* p = fresh();
  const Range middle = range_of(p + (2 * page), 4 * page);
  REQUIRE(w.watch(middle));
  CHECK(w.hears(middle, [&] { madvise(p + (3 * page), page, MADV_DONTNEED); }));
  CHECK(w.monitor.forget(range_of(p, bytes)));
  const uint64_t epoch = w.monitor.epoch();
  madvise(p + (4 * page), page, MADV_DONTNEED); // of which nobody hears any more
  CHECK(w.monitor.epoch() == epoch);
  w.monitor.unwatch(middle);
  munmap(p, bytes);
}

TEST_CASE("more changes than can be kept are told of as all there is") {
  Watched w;
  char* p = fresh();
  REQUIRE(w.watch(range_of(p, bytes)));
  const uint64_t told = w.monitor.told();
  for (int i = 0; i < 1000; ++i)
    madvise(p, page, MADV_DONTNEED);
  CHECK(w.monitor.has_changed(range_of(p + (4 * page), page), told));
  bool all = false;
  w.monitor.news(w.seen, [&](const Range& heard, bool) { all = all || heard.to == UINTPTR_MAX; });
  CHECK(all);
  munmap(p, bytes);
}

// madvise() is heard of before the pages go: who looks at them in between has the old ones.
TEST_CASE("what has just been given up is not looked at for a while") {
  Watched w;
  char* p = fresh();
  REQUIRE(w.watch(range_of(p, bytes)));
  CHECK(w.hears(range_of(p, page), [&] { madvise(p, page, MADV_DONTNEED); }));
  CHECK(w.monitor.has_changed(range_of(p, page), w.monitor.told()));
  CHECK_FALSE(w.monitor.has_changed(range_of(p + page, page), w.monitor.told()));
  munmap(p, bytes);
}

TEST_CASE("threads that change and threads that ask do not wait for each other") {
  Watched w;
  std::atomic<bool> over{false};
  std::vector<std::thread> askers;
  char* mine = fresh();
  for (int i = 0; i < 2; ++i)
    askers.emplace_back([&] {
      uint64_t seen = 0;
      while (!over) {
        w.watch(range_of(mine, bytes));
        w.monitor.news(seen, [](const Range&, bool) {});
        w.monitor.unwatch(range_of(mine, bytes));
      }
    });
  for (int i = 0; i < 2000; ++i) {
    char* p = fresh(4 * page);
    REQUIRE(w.watch(range_of(p, 4 * page)));
    CHECK(w.hears(range_of(p, page), [&] { munmap(p, 4 * page); }));
    w.monitor.unwatch(range_of(p, 4 * page));
  }
  over = true;
  for (auto& asker : askers)
    asker.join();
  munmap(mine, bytes);
}

} // namespace
