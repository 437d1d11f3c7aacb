// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Moving bytes between processes, and telling which side was at fault when they do not move.
#include "engine.h"

#include <cerrno>
#include <unistd.h>

namespace adverb::loopback {

namespace {

// Splits the last range so that its final (aligned) eight bytes or fewer are stored by
// themselves: who polls the last byte then finds the rest in place. An aligned eight-byte payload
// is one copy of its own, which is one store but for an interrupt in the midst of the kernel's
// string instruction (seen once in two million).
void split_tail(Ranges& ranges) {
  if (ranges.count == 0)
    return;
  iovec& last = ranges.part[ranges.count - 1];
  const auto begin = reinterpret_cast<uint64_t>(last.iov_base);
  const uint64_t end = begin + last.iov_len;
  const uint64_t split = (end - 1) & ~uint64_t{7};
  if (split <= begin)
    return;
  last.iov_len = split - begin;
  ranges.part[ranges.count++] = {reinterpret_cast<void*>(split), end - split};
}

// Drops the first `bytes` of the ranges.
void advance(Ranges& ranges, uint64_t bytes) {
  uint32_t first = 0;
  while (first < ranges.count && bytes >= ranges.part[first].iov_len)
    bytes -= ranges.part[first++].iov_len;
  for (uint32_t i = first; i < ranges.count; ++i)
    ranges.part[i - first] = ranges.part[i];
  ranges.count -= first;
  if (ranges.count != 0) {
    ranges.part[0].iov_base = static_cast<char*>(ranges.part[0].iov_base) + bytes;
    ranges.part[0].iov_len -= bytes;
  }
}

bool readable(const iovec& range) {
  char byte = 0;
  const iovec here = {&byte, 1}, there = {range.iov_base, 1};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

// Whether a byte can be written where it stands; the byte keeps its value only if nobody else
// writes it meanwhile, so this is used after a failure alone, on memory of this process.
bool writable(const iovec& range) {
  char byte = 0;
  const iovec here = {&byte, 1}, there = {range.iov_base, 1};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1 &&
         process_vm_writev(getpid(), &here, 1, &there, 1, 0) == 1;
}

template <bool kOut> Copied copy(pid_t peer, Ranges local, Ranges remote, bool tail_last) {
  if (tail_last)
    split_tail(kOut ? remote : local);
  while (local.count != 0 && remote.count != 0) {
    const ssize_t moved =
        kOut ? process_vm_writev(peer, local.part, local.count, remote.part, remote.count, 0)
             : process_vm_readv(peer, local.part, local.count, remote.part, remote.count, 0);
    if (moved > 0) {
      advance(local, static_cast<uint64_t>(moved));
      advance(remote, static_cast<uint64_t>(moved));
      continue;
    }
    if (moved < 0 && (errno == ESRCH || errno == EPERM))
      return Copied::gone;
    const bool local_ok = kOut ? readable(local.part[0]) : writable(local.part[0]);
    return local_ok ? Copied::remote_fault : Copied::local_fault;
  }
  return Copied::all;
}

} // namespace

Copied copy_out(pid_t peer, const Ranges& local, const Ranges& remote, bool tail_last) {
  return copy<true>(peer, local, remote, tail_last);
}

Copied copy_in(pid_t peer, const Ranges& local, const Ranges& remote) {
  return copy<false>(peer, local, remote, true);
}

} // namespace adverb::loopback
