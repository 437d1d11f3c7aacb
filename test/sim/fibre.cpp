// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "fibre.h"
#include "world/sync.h"

#include <array>
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <memory>
#include <type_traits>
#include <ucontext.h>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

// The library's objects that are linked here were compiled with fibres for threads.
static_assert(!std::is_same_v<adverb::Mutex, std::mutex>);

namespace sim {

namespace fibres {
uint32_t running = 0;
uint32_t countdown = 0;
} // namespace fibres

namespace {

constexpr size_t stack_bytes = 256 * 1024;

// What the C++ runtime keeps for each thread: exceptions that are caught, and how many are thrown
// and not caught yet.
struct Exceptions {
  void* caught = nullptr;
  unsigned uncaught = 0;
};

struct Fibre {
  ucontext_t context{};
  std::unique_ptr<char[]> stack;
  std::function<void()> task; // empty: not busy
  bool (*ready)(const void*) noexcept = nullptr;
  const void* waits_for = nullptr;
  Exceptions exceptions;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  const void* bottom = nullptr;
  size_t size = 0;
#endif
};

// Kept for all schedules: stacks are dear.
std::array<Fibre, fibres_max> all;
Fibres* the_fibres = nullptr;

void swap(uint32_t from, uint32_t to) {
  auto* of_thread = reinterpret_cast<Exceptions*>(abi::__cxa_get_globals());
  all[from].exceptions = std::exchange(*of_thread, all[to].exceptions);
  fibres::running = to;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&all[from].fake_stack, all[to].bottom, all[to].size);
#endif
  swapcontext(&all[from].context, &all[to].context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(all[from].fake_stack, nullptr, nullptr);
#endif
}

// A fibre's life: one task after another.
void live() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &all[0].bottom, &all[0].size);
#endif
  for (;;) {
    Fibre& me = all[fibres::running];
    me.task();
    me.task = nullptr;
    swap(fibres::running, 0);
  }
}

} // namespace

void fibres::interrupt() {
  the_fibres->interrupted_ = running;
  swap(running, 0);
}

void fibres::give_way(bool (*ready)(const void*) noexcept, const void* of) {
  if (running == 0) {
    fputs("sim: a lock that is held is taken once more, by who holds it\n", stderr);
    abort();
  }
  Fibre& me = all[running];
  me.waits_for = of;
  me.ready = ready;
  do
    swap(running, 0);
  while (!ready(of));
  me.ready = nullptr;
}

Fibres::Fibres(Choices& choices, uint32_t period) : choices_(choices), period_(period) {
  the_fibres = this;
  fibres::countdown = 0;
}

Fibres::~Fibres() {
  // Who waits for ever keeps its stack, and all that lies on it.
  for (uint32_t i = 1; i < fibres_max; ++i)
    if (all[i].task) {
      (void)all[i].stack.release();
      all[i] = {};
    }
  the_fibres = nullptr;
}

void Fibres::start(uint32_t fibre, std::function<void()> task) {
  assert(!busy(fibre));
  Fibre& one = all[fibre];
  if (!one.stack) {
    one.stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
    getcontext(&one.context);
    one.context.uc_stack.ss_sp = one.stack.get();
    one.context.uc_stack.ss_size = stack_bytes;
    makecontext(&one.context, live, 0);
#if defined(__SANITIZE_ADDRESS__)
    one.bottom = one.stack.get();
    one.size = stack_bytes;
#endif
  }
  one.task = std::move(task);
  run(fibre);
}

bool Fibres::busy(uint32_t fibre) const {
  return static_cast<bool>(all[fibre].task);
}

bool Fibres::runnable(uint32_t fibre) const {
  const Fibre& one = all[fibre];
  return one.task && (one.ready == nullptr || one.ready(one.waits_for));
}

bool Fibres::idle() const {
  for (uint32_t i = 1; i < fibres_max; ++i)
    if (busy(i))
      return false;
  return true;
}

void Fibres::resume(uint32_t fibre) {
  assert(runnable(fibre));
  if (interrupted_ == fibre)
    interrupted_ = 0;
  run(fibre);
}

void Fibres::turned_away() noexcept {
  if (std::exchange(interrupted_, 0) != 0)
    ++switches_;
}

void Fibres::run(uint32_t fibre) {
  turned_away();
  if (period_ != 0)
    fibres::countdown = choices_.below(period_);
  swap(0, fibre);
}

void Fibres::calm() noexcept {
  period_ = 0;
  fibres::countdown = 0;
}

} // namespace sim
