// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/links.h"
#include "link/broker.h"
#include "link/owner.h"
#include "link/seeker.h"
#include "link/service.h"
#include "policy/policy.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>

namespace adverb::link {
namespace {

constexpr std::chrono::milliseconds second_probe{250};
constexpr std::chrono::milliseconds farewell{500};

std::atomic<Links*> instance{nullptr};
std::mutex starting;

wire::Id gid_of(const LocalQp& qp) {
  wire::Id id;
  memcpy(id.data(), qp.sgid.raw, id.size());
  return id;
}

} // namespace

struct Links::State {
  wire::Id process = random_id();
  Directory directory;
  Owner owner{directory, process};
  Seeker seeker{process};
  Broker broker{policy::current().link().port, false,
                [this](int fd, const wire::Hello& hello) { owner.accept(fd, hello); }};

  void probe(const LocalQp& asking, const std::function<void(Bound)>& done, bool again);

  std::mutex probes_lock;
  std::condition_variable probes_answered;
  int probes = 0; // under way
};

Links& Links::get() {
  if (Links* links = instance.load(std::memory_order_acquire))
    return *links;
  const std::lock_guard hold(starting);
  if (instance.load() == nullptr)
    instance.store(new Links(new State), std::memory_order_release); // for the process's life
  return *instance.load();
}

void Links::publish(const LocalQp& qp) {
  state_->directory.put(qp);
  state_->broker.add(gid_of(qp), qp.qpn);
}

void Links::connected(const LocalQp& qp) {
  state_->directory.put(qp);
  Service::get().run([state = state_] { state->owner.retry_waiting(); });
}

void Links::withdraw(uint32_t qpn, ibv_device*, uint64_t handle) {
  LocalQp was;
  if (state_->directory.remove(handle, &was))
    state_->broker.remove({}, qpn);
}

void Links::bind(const LocalQp& qp, std::function<void(Bound)> done) {
  Service::get().run([state = state_, qp, done = std::move(done)]() mutable {
    state->seeker.bind(qp, false, std::move(done));
  });
}

void Links::probe(const LocalQp& qp, std::function<void(Bound)> done) {
  LocalQp asking = qp;
  ++asking.handle; // beside the bind that may follow; handles are random, so none bears this one
  {
    const std::lock_guard hold(state_->probes_lock);
    ++state_->probes;
  }
  Service::get().run(
      [state = state_, asking, done = std::move(done)] { state->probe(asking, done, false); });
}

// Service thread. A host that runs adverb but not this queue pair is asked twice: two queue pairs
// that go at about the same time are nothing to warn of, and the caller's will be gone by then.
void Links::State::probe(const LocalQp& asking, const std::function<void(Bound)>& done,
                         bool again) {
  seeker.bind(asking, true, [this, asking, done, again](const Bound& bound) {
    if (bound.verdict == Verdict::stock && bound.host_known && !again) {
      Service::get().after(second_probe, [this, asking, done] { probe(asking, done, true); });
      return;
    }
    done(bound);
    const std::lock_guard hold(probes_lock);
    if (--probes == 0)
      probes_answered.notify_all();
  });
}

void await_probes() noexcept {
  if (Links* links = instance.load(std::memory_order_acquire))
    links->await_probes();
}

// By the system clock: the tools that look for races do not know a wait by the steady one.
void Links::await_probes() {
  std::unique_lock hold(state_->probes_lock);
  state_->probes_answered.wait_until(hold, std::chrono::system_clock::now() + farewell,
                                     [this] { return state_->probes == 0; });
}

void Links::cancel_bind(uint64_t handle) {
  Service::get().run([state = state_, handle] { state->seeker.cancel(handle); });
}

void after_fork_child() {
  Service::after_fork_child();
  Device::after_fork_child();
  instance.store(nullptr);
  new (&starting) std::mutex;
}

} // namespace adverb::link
