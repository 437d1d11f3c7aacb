// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/mappings.h"
#include "memory/copy.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

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

} // namespace

Mapping mapping_of(uintptr_t start, size_t length, bool writable) {
  const uintptr_t end = start + length;
  if (end < start)
    return Mapping::absent;
  const std::unique_ptr<FILE, File> maps(fopen("/proc/self/maps", "re"));
  if (!maps)
    return Mapping::foreign; // no /proc: let the provider pin, as stock would
  uintptr_t next = start;    // everything below is known to be there
  bool foreign = false;
  char* line = nullptr;
  size_t room = 0;
  while (next < end && getline(&line, &room, maps.get()) > 0) {
    uint64_t from = 0;
    uint64_t to = 0;
    uint64_t inode = 0;
    char rights[5] = {};
    int path_at = 0;
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*s %*s %" SCNu64 " %n", &from, &to, rights,
               &inode, &path_at) < 4)
      continue;
    if (to <= next)
      continue;
    if (from > next || rights[0] != 'r' || (writable && rights[1] != 'w'))
      break;
    std::string_view path(line + path_at);
    while (!path.empty() && path.back() == '\n')
      path.remove_suffix(1);
    const bool ordinary = is_ordinary(path, rights[3] == 's');
    if (ordinary && inode != 0 && !ends_in_file(std::min<uint64_t>(to, end)))
      break;
    foreign |= !ordinary;
    next = to;
  }
  free(line);
  if (next < end)
    return Mapping::absent;
  return foreign ? Mapping::foreign : Mapping::ordinary;
}

} // namespace adverb::memory
