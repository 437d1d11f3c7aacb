// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "service/thread.h"
#include "service/loop.h"
#include "world/world.h"

#include <mutex>
#include <unistd.h>
#include <utility>

namespace adverb::service {

using std::chrono::nanoseconds;

Loop& Thread::loop() {
  if (Loop* running = loop_.load(std::memory_order_acquire))
    return *running;
  const std::lock_guard hold(starting_);
  if (loop_.load() == nullptr)
    loop_.store(new Loop(world_, *this), std::memory_order_release); // lives as long as the process
  return *loop_.load();
}

void Thread::watch(int fd, uint32_t events, std::function<void(uint32_t)> ready) {
  own_fd(fd);
  loop().watch(fd, events, std::move(ready));
}

void Thread::change(int fd, uint32_t events) {
  loop().change(fd, events);
}

void Thread::unwatch(int fd) {
  loop().unwatch(fd);
  disown_fd(fd);
}

void Thread::run(std::function<void()> task) {
  loop().run(std::move(task));
}

uint64_t Thread::after(nanoseconds delay, std::function<void()> task) {
  return loop().after(delay, std::move(task));
}

void Thread::cancel(uint64_t timer) {
  loop().cancel(timer);
}

void Thread::post(Job& job) {
  loop().post(job);
}

void Thread::poll(Poller& poller) {
  loop().poll(poller);
}

bool Thread::on_thread() const noexcept {
  const Loop* const running = loop_.load(std::memory_order_acquire);
  return running != nullptr && running->leads();
}

void Thread::own_fd(int fd) noexcept {
  if (fd >= 0 && static_cast<size_t>(fd) < fds_max)
    owned_[static_cast<size_t>(fd) / 64].fetch_or(uint64_t{1} << (fd % 64));
}

void Thread::disown_fd(int fd) noexcept {
  if (fd >= 0 && static_cast<size_t>(fd) < fds_max)
    owned_[static_cast<size_t>(fd) / 64].fetch_and(~(uint64_t{1} << (fd % 64)));
}

void Thread::in_child() noexcept {
  for (size_t word = 0; word < owned_.size(); ++word) {
    uint64_t bits = owned_[word].exchange(0);
    for (int bit = 0; bits != 0; ++bit, bits >>= 1)
      if ((bits & 1) != 0)
        close(static_cast<int>(word * 64) + bit);
  }
  loop_.store(nullptr);
  renew(starting_);
}

} // namespace adverb::service
