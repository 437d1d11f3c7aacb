// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/mappings.h"
#include "memory/copy.h"
#include "world/no_cancel.h"
#include "world/sync.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace adverb::memory {
namespace {

bool starts_with_any(std::string_view path, std::initializer_list<std::string_view> heads) {
  for (const auto head : heads)
    if (path.starts_with(head))
      return true;
  return false;
}

// Device mappings show as /dev/...; the kernel's own shared memory hides behind a few names there.
// A shared mapping of a file on disk is the provider's: stock refuses to pin those for writing
// (kernel 6.4 on), and adverb gives the same answer by asking.
bool is_ordinary(std::string_view path, bool shared) {
  if (path.empty())
    return true;
  if (starts_with_any(path, {"/dev/shm/", "/dev/zero", "/dev/hugepages", "/memfd:", "/SYSV",
                             "/anon_hugepage", "[heap]", "[stack", "[anon"}))
    return true;
  if (path.front() == '[' || path.starts_with("/dev/") || path.starts_with("anon_inode:"))
    return false;
  return !shared;
}

// Pages past the end of a file cannot be had, which the kernel says when one is touched, of shared
// memory, a memfd, a private mapping all the same; and the last one is there only if all are. Where
// no copy is possible at all nothing can be said.
bool ends_in_file(uintptr_t end) {
  char last = 0;
  return memory::read(&last, reinterpret_cast<const void*>(end - 1), 1) ||
         !memory::read(&last, &last, 1);
}

struct File {
  void operator()(FILE* f) const { fclose(f); }
};

struct Vma {
  uint64_t from = 0;
  uint64_t to = 0;
  uint64_t inode = 0;
  bool readable = false;
  bool writable = false;
  bool shared = false;
  std::string_view path;
};

// linux/fs.h since 6.11; Debian 12 builds with older headers.
struct Query {
  uint64_t size;
  uint64_t flags;
  uint64_t address;
  uint64_t from;
  uint64_t to;
  uint64_t rights;
  uint64_t page_size;
  uint64_t offset;
  uint64_t inode;
  uint32_t major;
  uint32_t minor;
  uint32_t name_bytes;
  uint32_t build_id_bytes;
  uint64_t name;
  uint64_t build_id;
};
static_assert(sizeof(Query) == 104);
constexpr unsigned long procmap_query = _IOWR('f', 17, Query);
constexpr uint64_t readable = 1;
constexpr uint64_t writable = 2;
constexpr uint64_t shared = 8;

// Once a kernel has said so it is not asked again.
Atomic<bool> cannot_be_asked{false};

// Calls `look` with the mappings that meet [next, end), from the lowest, until it says no, and
// moves `next` as far as all is mapped, and `look` agrees. Each is asked for by itself, which takes
// the same time however many others there are. False: this kernel cannot be asked.
template <typename Look> bool ask(uintptr_t& next, uintptr_t end, Look& look) {
  if (cannot_be_asked.load(std::memory_order_relaxed))
    return false;
  const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0)
    return false;
  std::string name(PATH_MAX, '\0'); // as long as any, and not on a stack that may be small
  bool answers = true;
  while (next < end) {
    Query query{};
    query.size = sizeof query;
    query.address = next;
    query.name = reinterpret_cast<uintptr_t>(name.data());
    query.name_bytes = name.size();
    if (ioctl(maps, procmap_query, &query) != 0) {
      answers = errno == ENOENT; // a hole
      if (errno == ENOTTY)
        cannot_be_asked.store(true, std::memory_order_relaxed);
      break;
    }
    // With the byte that ends it; 0: it has none.
    const std::string_view path(name.data(), std::max<uint32_t>(query.name_bytes, 1) - 1);
    if (!look(Vma{query.from, query.to, query.inode, (query.rights & readable) != 0,
                  (query.rights & writable) != 0, (query.rights & shared) != 0, path}))
      break;
    next = query.to;
  }
  close(maps);
  return answers;
}

// Takes the number in front, and the one byte behind it, off the text.
uint64_t take_number(std::string_view& text, int base) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const char* const after = std::from_chars(text.data(), end, value, base).ptr;
  text = std::string_view(after, end).substr(after != end ? 1 : 0);
  return value;
}

// Takes the word in front, and what separates it from the next, off the text.
std::string_view take_word(std::string_view& text) {
  const std::string_view word = text.substr(0, text.find(' '));
  text.remove_prefix(word.size());
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return word;
}

// A line such as "7f10c000-7f10d000 rw-p 00002000 fe:01 1234   /usr/lib/x". Of what ends before
// `next` it reads no more than that: sscanf() would take most of the time of a registration.
Vma parse(std::string_view line, uintptr_t next) {
  Vma vma;
  vma.from = take_number(line, 16);
  vma.to = take_number(line, 16);
  if (vma.to <= next)
    return vma;
  const std::string_view rights = take_word(line);
  vma.readable = rights.find('r') == 0;
  vma.writable = rights.find('w') == 1;
  vma.shared = rights.find('s') == 3;
  take_word(line); // its offset in the file
  take_word(line); // the device that has it
  std::string_view inode = take_word(line);
  vma.inode = take_number(inode, 10);
  vma.path = line;
  return vma;
}

// The same by the text of all.
template <typename Look> void read_all(uintptr_t& next, uintptr_t end, Look& look) {
  const std::unique_ptr<FILE, File> maps(fopen("/proc/self/maps", "re"));
  char* text = nullptr;
  size_t room = 0;
  ssize_t bytes = 0;
  while (maps && next < end && (bytes = getline(&text, &room, maps.get())) > 0) {
    const std::string_view line(text, static_cast<size_t>(bytes));
    const Vma vma = parse(line.substr(0, line.find('\n')), next);
    if (vma.to <= next)
      continue;
    if (vma.from > next || !look(vma))
      break;
    next = vma.to;
  }
  free(text);
}

// How far all is mapped from `start` on, and `look` agrees; `start` where there is no /proc.
template <typename Look> uintptr_t walk(uintptr_t start, uintptr_t end, Maps by, Look&& look) {
  uintptr_t next = start;
  if (by != Maps::asked || !ask(next, end, look))
    read_all(next, end, look);
  return next;
}

constexpr uintptr_t page_size = 4096;
constexpr size_t few_pages = 17; // 64 KiB anywhere

// What the kernel says of the mapping that `address` lies in; all zero: there is none, or it cannot
// be asked.
Query query(uintptr_t address) noexcept {
  Query found{};
  const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0)
    return found;
  found.size = sizeof found;
  found.address = address;
  const bool answered = ioctl(maps, procmap_query, &found) == 0;
  close(maps);
  return answered ? found : Query{};
}

// The same page size by the text of /proc/self/smaps: a line as of /proc/self/maps, and in one of
// those that follow it "KernelPageSize:    2048 kB".
std::optional<size_t> said_page(uintptr_t address) {
  const std::unique_ptr<FILE, File> smaps(fopen("/proc/self/smaps", "re"));
  char* text = nullptr;
  size_t room = 0;
  ssize_t bytes = 0;
  bool here = false;
  std::optional<size_t> found;
  while (smaps && !found && (bytes = getline(&text, &room, smaps.get())) > 0) {
    std::string_view line(text, static_cast<size_t>(bytes));
    constexpr std::string_view key = "KernelPageSize:";
    if (line.starts_with(key)) {
      line.remove_prefix(std::min(line.find_first_not_of(' ', key.size()), line.size()));
      if (here)
        found = take_number(line, 10) << 10;
    } else if (line.find('-') < line.find(' ')) {
      const uint64_t from = take_number(line, 16);
      here = from <= address && address < take_number(line, 16);
    }
  }
  free(text);
  return found;
}

// Whether the pages are this process's own, to be read and, if asked for, written. That is found
// out as stock's registration does, by having them there (madvise(2), Linux 5.14), and then by what
// the kernel shows of each: a file's or shared memory's it tells apart, a device's cannot be had
// so. False: not so, too many for that, or nothing can be said.
bool are_own_pages(uintptr_t start, uintptr_t end, bool writable) {
  constexpr int populate_read = 22;
  constexpr int populate_write = 23;
  constexpr uint64_t there = uint64_t{1} << 63; // bits of an entry: proc_pid_pagemap(5)
  constexpr uint64_t of_file = uint64_t{1} << 61;
  const uintptr_t from = start & ~(page_size - 1);
  const size_t count = (end - from + page_size - 1) / page_size;
  std::array<uint64_t, few_pages> pages{};
  if (count > few_pages || madvise(reinterpret_cast<void*>(from), count * page_size,
                                   writable ? populate_write : populate_read) != 0)
    return false;
  const int map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (map < 0)
    return false;
  const auto wanted = static_cast<ssize_t>(count * sizeof pages[0]);
  const bool read = pread(map, pages.data(), static_cast<size_t>(wanted),
                          static_cast<off_t>(from / page_size * sizeof pages[0])) == wanted;
  close(map);
  return read && std::all_of(pages.begin(), pages.begin() + static_cast<ptrdiff_t>(count),
                             [](uint64_t page) { return (page & (there | of_file)) == there; });
}

bool has_maps() {
  return access("/proc/self/maps", R_OK) == 0;
}

} // namespace

Mapping mapping_of(uintptr_t start, size_t length, bool writable, Maps by) {
  const NoCancel whole;
  const uintptr_t end = start + length;
  if (end < start)
    return Mapping::absent;
  // To read about all mappings takes longer than stock's registration of few pages.
  if (by == Maps::asked && cannot_be_asked.load(std::memory_order_relaxed))
    by = Maps::tried;
  if (by == Maps::tried && start < end && are_own_pages(start, end, writable))
    return Mapping::ordinary;
  bool foreign = false;
  const uintptr_t mapped = walk(start, end, by, [&](const Vma& vma) {
    const bool ordinary = is_ordinary(vma.path, vma.shared);
    foreign |= !ordinary;
    return vma.readable && (!writable || vma.writable) &&
           !(ordinary && vma.inode != 0 && !ends_in_file(std::min<uint64_t>(vma.to, end)));
  });
  if (mapped < end) // no /proc: let the provider pin, as stock would
    return has_maps() ? Mapping::absent : Mapping::foreign;
  return foreign ? Mapping::foreign : Mapping::ordinary;
}

bool is_private_and_anonymous(uintptr_t start, size_t length, Maps by) {
  const NoCancel whole;
  return walk(start, start + length, by, [](const Vma& vma) {
           return !vma.shared && vma.inode == 0 &&
                  (vma.path.empty() || starts_with_any(vma.path, {"[heap]", "[stack", "[anon"}));
         }) >= start + length;
}

size_t base_page() noexcept {
  return getauxval(AT_PAGESZ);
}

size_t page_of_mapping(uintptr_t address, Maps by) {
  const NoCancel whole;
  if (const Query found = by == Maps::asked ? query(address) : Query{}; found.page_size != 0)
    return found.page_size;
  // The text that says it takes the kernel longer by far, so it is read where it may say something.
  bool may_be_huge = false;
  walk(address, address + 1, Maps::read, [&](const Vma& vma) {
    may_be_huge = vma.inode != 0 && !vma.path.ends_with(".so");
    return true;
  });
  return may_be_huge ? said_page(address).value_or(base_page()) : base_page();
}

uintptr_t end_of_mapping(uintptr_t address) noexcept {
  const NoCancel whole;
  return query(address).to;
}

} // namespace adverb::memory
