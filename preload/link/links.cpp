// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/links.h"
#include "link/broker.h"
#include "link/owner.h"
#include "link/seeker.h"
#include "link/service.h"
#include "policy/policy.h"

#include <atomic>
#include <cstring>
#include <mutex>

namespace adverb::link {
namespace {

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
  Service::get().run([state = state_, asking, done = std::move(done)]() mutable {
    state->seeker.bind(asking, true, std::move(done));
  });
}

void Links::cancel_bind(uint64_t handle) {
  Service::get().run([state = state_, handle] {
    state->seeker.cancel(handle);
    state->seeker.cancel(handle + 1); // its probe
  });
}

void after_fork_child() {
  Service::after_fork_child();
  Device::after_fork_child();
  instance.store(nullptr);
  new (&starting) std::mutex;
}

} // namespace adverb::link
