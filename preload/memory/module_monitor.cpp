// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/module_monitor.h"
#include "memory/module_file.h"
#include "memory/own_fds.h"

#include "../../kernel/adverb_uapi.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <string>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace adverb::memory {

namespace {

constexpr uintptr_t page = 4096;
constexpr size_t changes_at_once = 16;

std::pair<uintptr_t, uintptr_t> whole_pages(Range range) noexcept {
  return {range.from & ~(page - 1), (range.to + page - 1) & ~(page - 1)};
}

bool monitors(int fd, std::chrono::milliseconds wait) noexcept {
  adverb_monitor_begin begin{};
  begin.wait_ms =
      static_cast<uint32_t>(std::clamp<int64_t>(wait.count(), 0, ADVERB_MONITOR_WAIT_MAX));
  return ioctl(fd, ADVERB_IOC_MONITOR, &begin) == 0;
}

} // namespace

std::unique_ptr<ModuleMonitor> ModuleMonitor::open(MonitorHooks hooks,
                                                   std::chrono::milliseconds recall_wait) {
  std::string why;
  const int fd = open_module(why);
  if (fd < 0)
    return nullptr;
  if (!monitors(fd, recall_wait + std::chrono::seconds(1))) {
    close(fd);
    return nullptr;
  }
  std::unique_ptr<ModuleMonitor> made(new ModuleMonitor(std::move(hooks), fd));
  made->hooks_.own(fd);
  return made;
}

ModuleMonitor::~ModuleMonitor() {
  if (reader_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t told = write(stop_, &one, sizeof one);
    reader_.join();
  }
  own_fds::shut(stop_);
  own_fds::shut(fd_);
}

bool ModuleMonitor::start(const Held& /*held*/) {
  if (std::exchange(tried_, true))
    return reader_.joinable();
  stop_ = own_fds::raised(eventfd(0, EFD_CLOEXEC));
  int why = stop_ < 0 ? errno : 0;
  if (why == 0) {
    hooks_.own(stop_);
    why = reader_.start("adverb-monitor", [this] { serve(); });
  }
  if (why != 0)
    hooks_.say(std::string("the monitor's thread: ") + strerror(why));
  return why == 0;
}

bool ModuleMonitor::watch(Range what, Range /*within*/) {
  const auto pages = whole_pages(what);
  const Held held(lock_);
  if (pages.first >= pages.second || !start(held) || deaf_.load())
    return false;
  const auto at = watches_.try_emplace(pages).first;
  if (at->second.users == 0) {
    adverb_watch wanted{};
    wanted.start = pages.first;
    wanted.length = pages.second - pages.first;
    if (ioctl(fd_, ADVERB_IOC_WATCH, &wanted) != 0) {
      watches_.erase(at);
      return false;
    }
    at->second.number = wanted.watch;
  }
  ++at->second.users;
  return true;
}

void ModuleMonitor::unwatch(Range what) noexcept {
  const Held held(lock_);
  const auto at = watches_.find(whole_pages(what));
  if (at == watches_.end() || --at->second.users != 0)
    return;
  adverb_unwatch unwanted{};
  unwanted.watch = at->second.number;
  ioctl(fd_, ADVERB_IOC_UNWATCH, &unwanted);
  watches_.erase(at);
}

// What is watched may have changed at any time from here on, so nothing is any more.
void ModuleMonitor::hear_no_more() noexcept {
  deaf_.store(true);
  begin();
  tell(all_memory, true);
  end();
}

// Takes no lock and asks for no memory: whoever has them may be waiting for this.
void ModuleMonitor::serve() noexcept {
  std::array<pollfd, 2> sources{{{fd_, POLLIN, 0}, {stop_, POLLIN, 0}}};
  std::array<adverb_change, changes_at_once> changes;
  for (;;) {
    // Before it waits for the first, too: who has read is not waited for by its own changes.
    const ssize_t n = read(fd_, changes.data(), sizeof changes);
    if (n < 0 && errno != EAGAIN && errno != EINTR)
      return hear_no_more();
    if (n <= 0) {
      if (poll(sources.data(), sources.size(), -1) < 0 && errno != EINTR)
        return hear_no_more();
      if (sources[1].revents != 0)
        return;
      continue;
    }
    const size_t count = static_cast<size_t>(n) / sizeof changes[0];
    Stripes where = 0;
    for (size_t i = 0; i < count; ++i)
      where |= stripes_of({changes[i].start, changes[i].end});
    hooks_.before(where);
    begin();
    for (size_t i = 0; i < count; ++i) // a file's pages are cleared after it was told
      tell({changes[i].start, changes[i].end}, (changes[i].kind & ADVERB_CHANGE_CLEARED) != 0);
    end();
    adverb_heard heard{};
    heard.number = changes[count - 1].number;
    ioctl(fd_, ADVERB_IOC_HEARD, &heard);
    hooks_.after(where);
  }
}

} // namespace adverb::memory
