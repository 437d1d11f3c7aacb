// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How this process hears that addresses of its own have come to mean other memory, and what it does
// before.
#include "memory/module_monitor.h"
#include "memory/own_fds.h"
#include "memory/userfault.h"
#include "registration/recalls.h"
#include "world/no_cancel.h"
#include "world/world.h"

#include <chrono>
#include <climits>
#include <ctime>
#include <functional>
#include <linux/futex.h>
#include <memory>
#include <string>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace adverb {

namespace {

using registration::Recalls;

void tell(int fd) noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t told = write(fd, &one, sizeof one);
}

void take(int fd) noexcept {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t taken = read(fd, &count, sizeof count);
}

// Who waits for leases takes no lock, and there may be several: so they sleep at a number of how
// often all were back somewhere.
struct Wakers {
  int service = own_fds::raised(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  Atomic<uint32_t> backs{0};
  ~Wakers() { own_fds::shut(service); }
  Wakers() = default;
  Wakers(const Wakers&) = delete;
  Wakers& operator=(const Wakers&) = delete;

  void back() noexcept {
    backs.fetch_add(1);
    syscall(SYS_futex, &backs, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
  bool wait(const std::function<bool()>& done, std::chrono::milliseconds most) noexcept {
    using namespace std::chrono;
    const auto until = steady_clock::now() + most;
    for (;;) {
      const uint32_t before = backs.load();
      if (done())
        return true;
      const auto left = duration_cast<nanoseconds>(until - steady_clock::now()).count();
      if (left <= 0)
        return false;
      const timespec at_most{left / 1'000'000'000, left % 1'000'000'000};
      syscall(SYS_futex, &backs, FUTEX_WAIT_PRIVATE, before, &at_most, nullptr, 0);
    }
  }
};

struct Waited final : Recalls {
  explicit Waited(std::unique_ptr<Wakers> mine)
      : Recalls({[this] { tell(wakers->service); }, [this] { wakers->back(); },
                 [this](const std::function<bool()>& done, std::chrono::milliseconds most) {
                   return wakers->wait(done, most);
                 }}),
        wakers(std::move(mine)) {}
  const std::unique_ptr<Wakers> wakers;
  Atomic<bool> watched{false}; // by the service
};

// From before a change may be heard of, so that none is while nobody knows who has leased what.
std::shared_ptr<Recalls> make_recalls(World& world) {
  auto recalls = std::make_shared<Waited>(std::make_unique<Wakers>());
  world.service.own_fd(recalls->wakers->service);
  return recalls;
}

// The caller that changes a mapping waits for it.
void before_change(World& world, memory::Stripes where) noexcept {
  Recalls* const recalls = world.parts.recalls.made();
  if (recalls == nullptr)
    return;
  recalls->begin_change(where);
  if (!recalls->wait(where, world.policy().recall_wait())) {
    world.counters.count(observe::Counter::recalls_overdue);
    recalls->overdue(where);
  }
}

void after_change(World& world, memory::Stripes where) noexcept {
  if (Recalls* const recalls = world.parts.recalls.made())
    recalls->end_change(where);
}

} // namespace

memory::Monitor& World::monitor() {
  return parts.monitor.get([this] {
    const NoCancel whole;
    parts.recalls.get([this] { return make_recalls(*this); });
    const memory::MonitorHooks hooks{
        [this](int fd) { service.own_fd(fd); },
        [this](const std::string& why) {
          log.info("changes of mappings cannot be observed ({}): windows end with their request, "
                   "which costs time",
                   why);
        },
        [this](memory::Stripes where) { before_change(*this, where); },
        [this](memory::Stripes where) { after_change(*this, where); }};
    if (auto module = memory::ModuleMonitor::open(hooks, policy().recall_wait())) {
      log.debug("adverb.ko observes changes of mappings");
      return std::shared_ptr<memory::Monitor>(std::move(module));
    }
    return std::shared_ptr<memory::Monitor>(std::make_shared<memory::UserfaultMonitor>(hooks));
  });
}

registration::Recalls& World::recalls() {
  auto& recalls = parts.recalls.get([this] { return make_recalls(*this); });
  // A test's own is woken otherwise.
  if (auto* const mine = dynamic_cast<Waited*>(&recalls);
      mine != nullptr && !mine->watched.exchange(true)) {
    const int fd = mine->wakers->service;
    service.watch(fd, EPOLLIN, [fd, mine](uint32_t) {
      take(fd);
      mine->serve();
    });
  }
  return recalls;
}

} // namespace adverb
