// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The service of a process: one thread, and where jobs are run a watcher and those that take over
// from one that sleeps (relay.h).
//
// Started at first use, never in a process without managed objects. They block all signals but the
// ones a fault raises, and end with the process.
#pragma once

#include "service/service.h"
#include "world/sync.h"

#include <array>
#include <cstddef>

namespace adverb {
class World;
}

namespace adverb::service {

class Loop;

class Thread final : public Service {
public:
  /// `world` may still have to be made; it is used from the first task on. A Thread that was used
  /// must live as long as the process.
  explicit Thread(World& world) : world_(world) {}
  ~Thread() override = default;
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  void watch(int fd, uint32_t events, std::function<void(uint32_t)> ready) override;
  void change(int fd, uint32_t events) override;
  void unwatch(int fd) override;
  void run(std::function<void()> task) override;
  uint64_t after(std::chrono::nanoseconds delay, std::function<void()> task) override;
  void cancel(uint64_t timer) override;
  void post(Job& job) override;
  void poll(Poller& poller) override;
  bool on_thread() const noexcept override;
  bool short_of_cpu() noexcept override;
  void own_fd(int fd) noexcept override;
  void disown_fd(int fd) noexcept override;

  /// In a fork child: closes what is owned and forgets the thread; the next use starts another.
  void in_child() noexcept;

private:
  Loop& loop();

  World& world_;
  Atomic<Loop*> loop_{nullptr};
  Mutex starting_;
};

} // namespace adverb::service
