// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the service's threads have in common: tasks, timers, descriptors and jobs, and who of them
// sees to these (relay.h). Left as it is in a fork child.
#pragma once

#include "service/cpu_share.h"
#include "service/jobs.h"
#include "service/relay.h"
#include "world/sync.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

struct epoll_event;

namespace adverb {
class World;
}

namespace adverb::service {

class Loop {
public:
  using nanoseconds = std::chrono::nanoseconds;

  /// Starts the first thread. Throws bad_alloc where there can be none.
  Loop(World& world, Service& owner);

  void watch(int fd, uint32_t events, std::function<void(uint32_t)> ready);
  void change(int fd, uint32_t events) const;
  void unwatch(int fd);
  void run(std::function<void()> task);
  uint64_t after(nanoseconds delay, std::function<void()> task);
  void cancel(uint64_t timer);
  void post(Job& job) noexcept;
  void poll(Poller& poller);
  bool leads() const noexcept { return relay_.leads(); }
  bool short_of_cpu() noexcept { return share_.is_short(); }

private:
  void wake();
  void lead();
  std::optional<nanoseconds> timeout();
  int wait(std::span<epoll_event> events, std::optional<nanoseconds> most);
  void serve_descriptors(std::optional<nanoseconds> most);
  void serve_tasks();
  bool looks(Poller& poller, bool after_job) noexcept;
  void look();
  bool serve_jobs();
  void count_ended() noexcept;
  template <typename F, typename... Args> void guarded(F& f, Args... args) noexcept;

  World& world_;
  Relay relay_;
  const int epoll_;
  const int event_;
  Mutex lock_;
  std::unordered_map<int, std::shared_ptr<std::function<void(uint32_t)>>> watched_;
  std::map<std::pair<nanoseconds, uint64_t>, std::function<void()>> timers_; // by time and number
  std::unordered_map<uint64_t, nanoseconds> times_;                          // by number
  std::vector<std::function<void()>> tasks_;
  Jobs jobs_{Relay::asleep_max};
  std::optional<std::shared_ptr<Party>> ended_; // whose job has, as yet uncounted; who leads has it
  uint64_t next_timer_ = 1;
  bool awake_ = true; // looks at tasks, timers and jobs before it sleeps
  // There may be tasks, or another timer is the first; there are jobs. Written under the lock.
  Atomic<bool> tasks_changed_{true};
  Atomic<bool> has_jobs_{false};

  // The leading thread's.
  struct Looking {
    Poller* poller;
    bool active;
  };
  std::vector<Looking> pollers_;
  size_t active_ = 0;
  bool job_run_ = false;          // since they looked last
  nanoseconds descriptors_at_{0}; // when they were looked at last
  nanoseconds timer_at_{0};       // the first one, at the latest look
  bool fine_ = true;              // epoll_pwait2 can be had
  CpuShare share_;                // measured by who leads
};

} // namespace adverb::service
