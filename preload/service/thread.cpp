// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "service/thread.h"
#include "memory/own_fds.h"
#include "service/loop.h"
#include "world/world.h"

#include <mutex>
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

bool Thread::short_of_cpu() noexcept {
  Loop* const running = loop_.load(std::memory_order_acquire);
  return running != nullptr && running->short_of_cpu();
}

void Thread::own_fd(int fd) noexcept {
  own_fds::add(fd);
}

void Thread::disown_fd(int fd) noexcept {
  own_fds::remove(fd);
}

void Thread::in_child() noexcept {
  own_fds::close_all();
  loop_.store(nullptr);
  renew(starting_);
}

} // namespace adverb::service
