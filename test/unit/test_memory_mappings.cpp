// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What registration may believe of a range of addresses.
#include "catch.h"
#include "memory/limits.h"
#include "memory/mappings.h"

#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using adverb::memory::Mapping;
using adverb::memory::Maps;

// As the kernel says when asked, which is what it has in its text.
Mapping mapping_of(uintptr_t start, size_t length, bool writable) {
  const Mapping asked = adverb::memory::mapping_of(start, length, writable);
  CHECK(adverb::memory::mapping_of(start, length, writable, Maps::read) == asked);
  CHECK(adverb::memory::mapping_of(start, length, writable, Maps::tried) == asked);
  return asked;
}

bool is_private_and_anonymous(uintptr_t start, size_t length) {
  const bool asked = adverb::memory::is_private_and_anonymous(start, length);
  CHECK(adverb::memory::is_private_and_anonymous(start, length, Maps::read) == asked);
  return asked;
}

namespace {

constexpr size_t page = 4096;

struct Mapped {
  explicit Mapped(size_t pages, int flags = MAP_PRIVATE | MAP_ANONYMOUS, int fd = -1)
      : bytes(pages * page), at(reinterpret_cast<uintptr_t>(
                                 mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0))) {}
  ~Mapped() { munmap(reinterpret_cast<void*>(at), bytes); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  void protect(size_t index, int rights) const {
    mprotect(reinterpret_cast<void*>(at + index * page), page, rights);
  }
  void unmap(size_t index) const { munmap(reinterpret_cast<void*>(at + index * page), page); }
  size_t bytes;
  uintptr_t at;
};

} // namespace

TEST_CASE("ordinary memory is ordinary, by however many mappings it is made of") {
  const Mapped m(8);
  CHECK(mapping_of(m.at, m.bytes, true) == Mapping::ordinary);
  CHECK(mapping_of(m.at + 1, 1, true) == Mapping::ordinary);
  m.protect(3, PROT_READ); // three mappings now
  CHECK(mapping_of(m.at, m.bytes, false) == Mapping::ordinary);
  int local = 0;
  CHECK(mapping_of(reinterpret_cast<uintptr_t>(&local), sizeof local, true) == Mapping::ordinary);
  void* heap = malloc(100);
  CHECK(mapping_of(reinterpret_cast<uintptr_t>(heap), 100, true) == Mapping::ordinary);
  free(heap);
}

TEST_CASE("a hole or a missing right anywhere is absent, as stock answers EFAULT") {
  const Mapped m(8);
  m.protect(3, PROT_READ);
  CHECK(mapping_of(m.at, m.bytes, true) == Mapping::absent);
  CHECK(mapping_of(m.at, 3 * page, true) == Mapping::ordinary);
  CHECK(mapping_of(m.at, 3 * page + 1, true) == Mapping::absent);
  m.protect(5, PROT_NONE);
  CHECK(mapping_of(m.at, m.bytes, false) == Mapping::absent);
  CHECK(mapping_of(m.at + 6 * page, 2 * page, true) == Mapping::ordinary);
  m.unmap(7);
  CHECK(mapping_of(m.at + 6 * page, page, true) == Mapping::ordinary);
  CHECK(mapping_of(m.at + 6 * page, page + 1, true) == Mapping::absent);
  CHECK(mapping_of(m.at + 7 * page, 1, false) == Mapping::absent);
}

TEST_CASE("ranges that end beyond the address space are absent") {
  const Mapped m(1);
  CHECK(mapping_of(m.at, SIZE_MAX, false) == Mapping::absent);
  CHECK(mapping_of(m.at, SIZE_MAX - m.at, false) == Mapping::absent);
  CHECK(mapping_of(0, 1, false) == Mapping::absent);
  CHECK(mapping_of(UINTPTR_MAX, 1, false) == Mapping::absent);
}

TEST_CASE("shared memory and private files are ordinary, shared files and special pages are not") {
  const int memory = memfd_create("test", MFD_CLOEXEC);
  REQUIRE(ftruncate(memory, page) == 0);
  const Mapped shared(1, MAP_SHARED, memory);
  CHECK(mapping_of(shared.at, page, true) == Mapping::ordinary);
  const Mapped anonymous(1, MAP_SHARED | MAP_ANONYMOUS);
  CHECK(mapping_of(anonymous.at, page, true) == Mapping::ordinary);
  close(memory);

  FILE* file = tmpfile();
  REQUIRE(file != nullptr);
  REQUIRE(ftruncate(fileno(file), page) == 0);
  const Mapped own(1, MAP_PRIVATE, fileno(file));
  CHECK(mapping_of(own.at, page, true) == Mapping::ordinary);
  const Mapped theirs(1, MAP_SHARED, fileno(file));
  CHECK(mapping_of(theirs.at, page, true) == Mapping::foreign);
  fclose(file);

  if (const uintptr_t vdso = getauxval(AT_SYSINFO_EHDR); vdso != 0)
    CHECK(mapping_of(vdso, page, false) == Mapping::foreign);
}

TEST_CASE("a range that reaches past a file's end is absent, as stock answers EFAULT") {
  const int memory = memfd_create("test", MFD_CLOEXEC);
  FILE* file = tmpfile();
  REQUIRE(file != nullptr);
  for (const int fd : {memory, fileno(file)})
    for (const int flags : {MAP_SHARED, MAP_PRIVATE}) {
      if (fd != memory && flags == MAP_SHARED)
        continue; // the provider's to judge
      CAPTURE(fd == memory, flags);
      REQUIRE(ftruncate(fd, page + 100) == 0);
      const Mapped m(4, flags, fd);
      CHECK(mapping_of(m.at, 2 * page, true) == Mapping::ordinary); // to the end of its last page
      CHECK(mapping_of(m.at, 2 * page + 1, true) == Mapping::absent);
      CHECK(mapping_of(m.at, 4 * page, false) == Mapping::absent);
      CHECK(mapping_of(m.at + 3 * page, 1, false) == Mapping::absent);
      REQUIRE(ftruncate(fd, 4 * page) == 0);
      CHECK(mapping_of(m.at, 4 * page, true) == Mapping::ordinary);
    }
  close(memory);
  fclose(file);
}

TEST_CASE("what is left of RLIMIT_MEMLOCK shrinks by what is locked") {
  const pid_t pid = fork();
  if (pid == 0) {
    const rlimit limit{1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || (geteuid() == 0 && setuid(65534) != 0))
      _exit(1);
    if (adverb::memory::memlock_left() != 1 << 20)
      _exit(2);
    void* memory =
        mmap(nullptr, 1 << 18, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mlock(memory, 1 << 18) != 0)
      _exit(3);
    _exit(adverb::memory::memlock_left() == (1 << 20) - (1 << 18) ? 0 : 4);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  CHECK((WIFEXITED(status) ? WEXITSTATUS(status) : -1) == 0);
}

TEST_CASE("only what no file and no other process could change is private and anonymous") {
  const Mapped m(4);
  CHECK(is_private_and_anonymous(m.at, m.bytes));
  m.protect(1, PROT_NONE);
  CHECK(is_private_and_anonymous(m.at, m.bytes)); // of two kinds of rights
  m.unmap(2);
  CHECK_FALSE(is_private_and_anonymous(m.at, m.bytes));
  CHECK(is_private_and_anonymous(m.at + 3 * page, page));
  const Mapped shared(1, MAP_SHARED | MAP_ANONYMOUS);
  CHECK_FALSE(is_private_and_anonymous(shared.at, page));
  const int memory = memfd_create("test", MFD_CLOEXEC);
  REQUIRE(ftruncate(memory, page) == 0);
  const Mapped file(1, MAP_PRIVATE, memory);
  CHECK_FALSE(is_private_and_anonymous(file.at, page));
  close(memory);
  int local = 0;
  CHECK(is_private_and_anonymous(reinterpret_cast<uintptr_t>(&local), sizeof local));
}

TEST_CASE("one mapping among very many is found as it is, asked for or read") {
  constexpr size_t many = 20000;
  const Mapped m(many);
  for (size_t i = 0; i < many; i += 2)
    m.protect(i, PROT_READ); // each a mapping of its own now
  CHECK(mapping_of(m.at + 10001 * page, page, true) == Mapping::ordinary);
  CHECK(mapping_of(m.at + 10002 * page, page, true) == Mapping::absent);
  CHECK(mapping_of(m.at, m.bytes, false) == Mapping::ordinary);
}

TEST_CASE("a mapping's page is as large as the kernel's own, asked for or read") {
  const Mapped ordinary(4);
  // Without a reservation it may be had where no huge page is; nobody touches it.
  constexpr size_t huge_bytes = 4 << 20;
  void* const huge = mmap(nullptr, huge_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
  REQUIRE(huge != MAP_FAILED);
  const auto at = reinterpret_cast<uintptr_t>(huge);
  for (const Maps by : {Maps::asked, Maps::read}) {
    CHECK(adverb::memory::page_of_mapping(ordinary.at + page + 1, by) == getauxval(AT_PAGESZ));
    CHECK(adverb::memory::page_of_mapping(at + 5 * page, by) == huge_bytes / 2);
    CHECK(adverb::memory::page_of_mapping(at + huge_bytes - 1, by) == huge_bytes / 2);
  }
  munmap(huge, huge_bytes);
}
