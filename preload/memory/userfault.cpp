// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/userfault.h"
#include "memory/mappings.h"
#include "memory/own_fds.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <new>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1 // Linux 5.11
#endif

namespace adverb::memory {

namespace {

constexpr uintptr_t page = 4096;
// Reading /proc/self/maps for each request would cost more than the request.
constexpr std::chrono::seconds refused_for{1};

Range whole_pages(Range range) noexcept {
  return {range.from & ~(page - 1), (range.to + page - 1) & ~(page - 1)};
}

Range meet(const Range& a, const Range& b) noexcept {
  return {std::max(a.from, b.from), std::min(a.to, b.to)};
}

bool covers(const Range& all, const Range& part) noexcept {
  return all.from <= part.from && part.to <= all.to;
}

} // namespace

UserfaultMonitor::~UserfaultMonitor() {
  {
    const Held held(lock_);
    idle_.splice(idle_.end(), in_use_);
    drop_idle(0, held);
  }
  if (reader_ != nullptr && reader_->joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t told = write(stop_, &one, sizeof one);
    reader_->join();
  }
  close_all();
}

void UserfaultMonitor::close_all() noexcept {
  for (int* fd : {&epoll_, &stop_})
    own_fds::shut(std::exchange(*fd, -1));
  for (auto& fd : fds_)
    if (const int open = fd.exchange(0); open > 0)
      own_fds::shut(open);
}

bool UserfaultMonitor::open(const Held& held) {
  if (reader_ == nullptr)
    reader_ = std::make_unique<OwnThread>(); // what needs memory comes first
  if (std::exchange(tried_, true))
    return reader_->joinable();
#if !defined(__x86_64__)
  hooks_.say(
      "mremap() is not hooked on this architecture, and would fail"); // interpose/mappings.cpp
  return false;
#endif
  const char* what = "eventfd";
  stop_ = own_fds::raised(eventfd(0, EFD_CLOEXEC));
  bool good = stop_ >= 0;
  if (good) {
    what = "epoll";
    epoll_ = own_fds::raised(epoll_create1(EPOLL_CLOEXEC));
    epoll_event end{.events = EPOLLIN, .data = {.u32 = stripe_count}};
    good = epoll_ >= 0 && epoll_ctl(epoll_, EPOLL_CTL_ADD, stop_, &end) == 0;
  }
  if (good) {
    what = "userfaultfd";
    good = open_stripe(0, held); // whether there is any
  }
  int why = errno;
  if (good) {
    what = "its thread";
    if (const int rc = start(held); rc != 0) {
      why = rc;
      good = false;
    }
  }
  if (good)
    for (const int fd : {epoll_, stop_, fds_[0].load()})
      hooks_.own(fd);
  if (!good) {
    close_all();
    hooks_.say(std::string(what) + ": " + strerror(why));
  }
  return good;
}

bool UserfaultMonitor::open_stripe(unsigned stripe, const Held& /*held*/) {
  if (fds_[stripe].load() > 0)
    return true;
  const int fd = own_fds::raised(
      static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY)));
  if (fd < 0)
    return false;
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_REMAP;
  epoll_event event{.events = EPOLLIN, .data = {.u32 = stripe}};
  if (ioctl(fd, UFFDIO_API, &api) != 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    const int why = errno;
    close(fd);
    errno = why;
    return false;
  }
  fds_[stripe].store(fd);
  if (reader_->joinable()) // else open() does, when all is well
    hooks_.own(fd);
  return true;
}

namespace {

// `what`, cut where stripes end.
template <typename Each> bool each_stripe(Range what, Each&& each) {
  constexpr uintptr_t stripe = uintptr_t{1} << stripe_bits;
  for (uintptr_t at = what.from; at < what.to;) {
    const uintptr_t end = std::min(what.to, (at & ~(stripe - 1)) + stripe);
    if (!each(Range{at, end}))
      return false;
    at = end;
  }
  return true;
}

} // namespace

// Up to where it was told: the end of `what`, if all is well.
uintptr_t UserfaultMonitor::tell_kernel(Range what, const Held& held) {
  uintptr_t told = what.from;
  each_stripe(what, [&](Range part) {
    const unsigned stripe = stripe_of(part.from);
    uffdio_register wanted{};
    wanted.range = {part.from, part.to - part.from};
    wanted.mode = UFFDIO_REGISTER_MODE_WP;
    if (!open_stripe(stripe, held) || ioctl(fds_[stripe].load(), UFFDIO_REGISTER, &wanted) != 0)
      return false;
    told = part.to;
    return true;
  });
  return told;
}

// The kernel was told of it in vain. What it knew before it goes on to know.
void UserfaultMonitor::take_back(Range what, const Held& held) noexcept {
  for (uintptr_t at = what.from & ~(granule - 1); at < what.to; at += granule) {
    const Range piece = meet(what, {at, at + granule});
    const auto known = parts_.find(at);
    if (known == parts_.end() || known->second.told.from >= known->second.told.to) {
      tell_kernel_no_more(piece, held);
      continue;
    }
    const Range& told = known->second.told;
    for (const Range beside : {Range{piece.from, std::min(piece.to, told.from)},
                               Range{std::max(piece.from, told.to), piece.to}})
      if (beside.from < beside.to)
        tell_kernel_no_more(beside, held);
  }
}

void UserfaultMonitor::tell_kernel_no_more(Range what, const Held& /*held*/) noexcept {
  each_stripe(what, [&](Range part) {
    uffdio_range all{part.from, part.to - part.from};
    if (const int fd = fds_[stripe_of(part.from)].load(); fd > 0)
      ioctl(fd, UFFDIO_UNREGISTER, &all);
    return true;
  });
}

// errno.
int UserfaultMonitor::start(const Held& /*held*/) {
  try {
    return reader_->start("adverb-monitor", [this] { serve(); });
  } catch (const std::bad_alloc&) { // memory may come back
    tried_ = false;
    close_all();
    throw;
  }
}

// Takes no lock and asks for no memory: whoever has them may be waiting for this.
void UserfaultMonitor::serve() noexcept {
  std::array<epoll_event, stripe_count + 1> events;
  for (;;) {
    const int n = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), -1);
    if (n < 0 && errno != EINTR)
      return;
    bool ends = false;
    for (int i = 0; i < n; ++i) {
      const uint32_t stripe = events[static_cast<size_t>(i)].data.u32;
      ends = ends || stripe == stripe_count;
      if (stripe < stripe_count)
        read(stripe);
    }
    if (ends)
      return;
  }
}

// To read is to let the caller go on: so it is said before that something is to come.
void UserfaultMonitor::read(unsigned stripe) noexcept {
  hooks_.before(1U << stripe);
  begin();
  const int fd = fds_[stripe].load();
  std::array<uffd_msg, 16> messages;
  ssize_t n = 0;
  while ((n = ::read(fd, messages.data(), sizeof messages)) > 0)
    for (size_t i = 0; i < static_cast<size_t>(n) / sizeof messages[0]; ++i) {
      const auto& arg = messages[i].arg;
      switch (messages[i].event) {
      case UFFD_EVENT_UNMAP:
        tell({arg.remove.start, arg.remove.end}, false);
        break;
      case UFFD_EVENT_REMOVE: // before it is done
        tell({arg.remove.start, arg.remove.end}, true);
        break;
      case UFFD_EVENT_REMAP: // what is unmapped is told of by itself; MREMAP_DONTUNMAP leaves it
        tell({arg.remap.from, arg.remap.from + arg.remap.len}, true);
        leave_moved(fd, {arg.remap.to, arg.remap.to + arg.remap.len});
        break;
      default:
        break;
      }
    }
  end();
  hooks_.after(1U << stripe);
}

// What has moved took its descriptor along, which may be of another stripe than the one it is in
// now. The event has the length that it had; it may have grown, or be one mapping with what was
// watched beside it, which is told of, too, as nobody hears of it any more.
void UserfaultMonitor::leave_moved(int fd, Range to) noexcept {
  moved_.store(true);
  const Range all{to.from, std::max(to.to, end_of_mapping(to.from))};
  uffdio_range range{all.from, all.to - all.from};
  ioctl(fd, UFFDIO_UNREGISTER, &range);
  tell(all, false);
}

// Of whichever stripe's descriptor it is: by the mapping, as newer kernels refuse a range of which
// a part is another's.
void UserfaultMonitor::leave_all(Range what) noexcept {
  for (uintptr_t at = what.from; at < what.to;) {
    const uintptr_t end = end_of_mapping(at);
    const uintptr_t to = end == 0 ? what.to : std::min(what.to, end);
    for (const auto& fd : fds_) {
      uffdio_range range{at, to - at};
      if (fd.load() > 0)
        ioctl(fd.load(), UFFDIO_UNREGISTER, &range);
    }
    at = to;
  }
}

namespace {

// Of `told`, what the kernel still knows when `gone` is another's. It stays one piece.
Range without(const Range& told, const Range& gone) noexcept {
  if (!told.meets(gone))
    return told;
  if (gone.from > told.from)
    return gone.to < told.to ? told : Range{told.from, gone.from};
  return gone.to < told.to ? Range{gone.to, told.to} : Range{};
}

} // namespace

// What has been unmapped is watched no more, whatever lies there now: a program's own userfaultfd
// may, which older kernels let others unregister.
void UserfaultMonitor::hear(const Held& /*held*/) {
  news(seen_, [this](const Range& range, bool coming) {
    for (auto at = parts_.lower_bound(range.from & ~(granule - 1));
         at != parts_.end() && at->first < range.to; ++at) {
      at->second.range = {};
      if (!coming)
        at->second.told = without(at->second.told, range);
    }
  });
}

bool UserfaultMonitor::watch(Range what, Range within) {
  what = whole_pages(what);
  within = whole_pages(within);
  const Held held(lock_);
  if (what.from >= what.to || !open(held))
    return false;
  hear(held);
  const uintptr_t first = what.from & ~(granule - 1);
  // From the first part that the kernel does not know to the last.
  Range missing{UINTPTR_MAX, 0};
  for (uintptr_t at = first; at < what.to; at += granule) {
    const Range needed = meet(what, {at, at + granule});
    const auto known = parts_.find(at);
    if (known != parts_.end() && covers(known->second.range, needed))
      continue;
    missing = {std::min(missing.from, at), at + granule};
  }
  if (missing.from < missing.to) {
    const auto now = std::chrono::steady_clock::now();
    if (now < refused_.until && covers(what, refused_.range))
      return false;
    Range asked = meet(within, missing);
    const auto told = [&] {
      // In this order: what changes between the two is heard of.
      const uintptr_t end = tell_kernel(asked, held);
      const bool heard =
          end == asked.to && is_private_and_anonymous(asked.from, asked.to - asked.from);
      if (!heard)
        take_back({asked.from, end}, held);
      return heard;
    };
    bool good = told();
    if (!good) { // others of its kind lie beside it
      asked = meet(what, missing);
      good = told();
    }
    if (!good) {
      refused_ = {what, now + refused_for};
      return false;
    }
    for (uintptr_t at = missing.from; at < missing.to; at += granule) {
      auto known = parts_.find(at);
      if (known == parts_.end()) {
        std::list<uintptr_t> one{at}; // what needs memory comes first
        known = parts_.try_emplace(at).first;
        known->second.place = one.begin();
        idle_.splice(idle_.end(), one);
      }
      Part& part = known->second;
      part.range = meet(asked, {at, at + granule});
      part.told = part.told.from < part.told.to ? Range{std::min(part.told.from, part.range.from),
                                                        std::max(part.told.to, part.range.to)}
                                                : part.range;
    }
  }
  for (uintptr_t at = first; at < what.to; at += granule) {
    Part& part = parts_.find(at)->second;
    if (part.users++ == 0)
      in_use_.splice(in_use_.end(), idle_, part.place);
  }
  drop_idle(idle_max, held);
  return true;
}

void UserfaultMonitor::unwatch(Range what) noexcept {
  what = whole_pages(what);
  const Held held(lock_);
  for (uintptr_t at = what.from & ~(granule - 1); at < what.to; at += granule) {
    const auto known = parts_.find(at);
    if (known == parts_.end() || --known->second.users != 0)
      continue;
    idle_.splice(idle_.end(), in_use_, known->second.place);
  }
  drop_idle(idle_max, held);
}

// That alone, as what lies beside it in a granule may be of a kind that the kernel refuses here.
bool UserfaultMonitor::forget(Range what) noexcept {
  what = whole_pages(what);
  const Stripes met = stripes_of(what);
  hooks_.before(met); // with no lock held, as it may wait
  const bool any = unregister(what);
  hooks_.after(met);
  return any;
}

bool UserfaultMonitor::unregister(Range what) noexcept {
  const Held held(lock_);
  hear(held);
  const auto first = parts_.lower_bound(what.from & ~(granule - 1));
  const auto each = [&](auto&& act) {
    for (auto at = first; at != parts_.end() && at->first < what.to; ++at)
      if (at->second.told.meets(what))
        act(at->second);
  };
  bool any = moved_.load(); // which may have left something that no part knows of
  each([&](Part&) { any = true; });
  if (!any)
    return false;
  // Who asks from here on waits: what changes now is not heard of. A mapping that has grown where
  // it was is watched beyond what the kernel was told of.
  begin();
  leave_all(what);
  each([&](Part& part) {
    part.range = {};
    part.told = without(part.told, what);
  });
  tell(what, false);
  end();
  return true;
}

void UserfaultMonitor::drop_idle(size_t most, const Held& held) noexcept {
  if (idle_.size() <= most)
    return;
  hear(held);
  while (idle_.size() > most) {
    const auto part = parts_.find(idle_.front());
    const Range range = part->second.told;
    idle_.pop_front();
    parts_.erase(part);
    tell_kernel_no_more(range, held);
  }
}

} // namespace adverb::memory
