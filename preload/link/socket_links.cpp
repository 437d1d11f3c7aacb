// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/socket_links.h"
#include "link/broker.h"
#include "link/broker_process.h"
#include "link/device.h"
#include "link/directory.h"
#include "link/identity.h"
#include "link/owner.h"
#include "link/peers.h"
#include "link/protocols.h"
#include "link/seeker.h"
#include "world/world.h"

#include <cassert>
#include <chrono>
#include <mutex>

namespace adverb::link {
namespace {

constexpr std::chrono::milliseconds second_probe{250};
constexpr std::chrono::milliseconds farewell{500};

Broker::Start broker_start(const policy::LinkSettings& settings, const observe::Log& log) {
  if (settings.broker == policy::BrokerPlace::inside)
    return {};
  return [port = settings.port, &log](int members, int peers) {
    return start_broker_process(port, log, members, peers);
  };
}

class SocketLinks final : public Links {
public:
  explicit SocketLinks(World& world) : world_(world) {}

  void serve(std::shared_ptr<Protocol> protocol) override { protocols_.add(std::move(protocol)); }
  void publish(const LocalQp& qp) override;
  void connected(const LocalQp& qp) override;
  void withdraw(uint32_t qpn, uint64_t handle) override;
  void bind(const LocalQp& qp, uint8_t protocol, std::function<void(Bound)> done) override;
  void cancel_bind(uint64_t handle) override;
  bool has_met(const LocalQp& qp, uint8_t protocol) const override {
    return seeker_.has_met(qp, protocol);
  }
  void claim(uint64_t handle, uint32_t key, std::function<void(const Offer&)> offered) override;
  void prove(uint64_t handle, const wire::Share& read,
             std::function<void(wire::Answer)> done) override;
  void unbind(uint64_t handle) override;
  void probe(const LocalQp& qp, std::function<void(Bound)> done) override;
  std::shared_ptr<Progress> progress(ibv_device* device) override { return devices_.get(device); }
  void await_probes() noexcept override;

private:
  void ask(const LocalQp& asking, const std::function<void(Bound)>& done, bool again);

  World& world_;
  const wire::Id process_ = random_id(world_.entropy);
  Protocols protocols_;
  Devices devices_{world_};
  Directory directory_;
  const std::shared_ptr<Peers> peers_ = Peers::make(world_, [this] {
    owner_.collect();
    seeker_.collect();
  });
  Owner owner_{world_, directory_, devices_, protocols_, process_, *peers_};
  Seeker seeker_{world_, devices_, process_, *peers_};
  Broker broker_{world_, world_.policy().link().port,
                 [this](int fd, const wire::Hello& hello) { owner_.accept(fd, hello); },
                 broker_start(world_.policy().link(), world_.log)};
  Mutex probes_lock_;
  ConditionVariable probes_answered_;
  int probes_ = 0; // under way
};

void SocketLinks::publish(const LocalQp& qp) {
  directory_.put(qp);
  broker_.add(id_of(qp.sgid), qp.qpn);
}

void SocketLinks::connected(const LocalQp& qp) {
  directory_.put(qp);
  world_.service.run([this, qpn = qp.qpn] { owner_.retry_waiting(qpn); });
}

void SocketLinks::withdraw(uint32_t qpn, uint64_t handle) {
  if (directory_.remove(handle))
    broker_.remove({}, qpn);
}

void SocketLinks::bind(const LocalQp& qp, uint8_t protocol, std::function<void(Bound)> done) {
  world_.service.run([this, qp, protocol = protocols_.find(protocol), done = std::move(done)] {
    assert(protocol); // served before anything is bound
    seeker_.bind(qp, protocol, done);
  });
}

void SocketLinks::cancel_bind(uint64_t handle) {
  world_.service.run([this, handle] { seeker_.cancel(handle); });
}

void SocketLinks::claim(uint64_t handle, uint32_t key, std::function<void(const Offer&)> offered) {
  world_.service.run([this, handle, key, offered = std::move(offered)]() mutable {
    seeker_.claim(handle, key, std::move(offered));
  });
}

void SocketLinks::prove(uint64_t handle, const wire::Share& read,
                        std::function<void(wire::Answer)> done) {
  world_.service.run([this, handle, read, done = std::move(done)]() mutable {
    seeker_.prove(handle, read, std::move(done));
  });
}

void SocketLinks::unbind(uint64_t handle) {
  world_.service.run([this, handle] { seeker_.unbind(handle); });
}

void SocketLinks::probe(const LocalQp& qp, std::function<void(Bound)> done) {
  LocalQp asking = qp;
  ++asking.handle; // beside the bind that may follow; handles are random, so none bears this one
  {
    const std::lock_guard hold(probes_lock_);
    ++probes_;
  }
  world_.service.run([this, asking, done = std::move(done)] { ask(asking, done, false); });
}

// A host that runs adverb but not this queue pair is asked twice: two queue pairs that go at about
// the same time are nothing to warn of, and the caller's will be gone by then.
void SocketLinks::ask(const LocalQp& asking, const std::function<void(Bound)>& done, bool again) {
  assert(world_.service.on_thread());
  seeker_.bind(asking, nullptr, [this, asking, done, again](const Bound& bound) {
    if (bound.verdict == Verdict::stock && bound.host_known && !again) {
      world_.service.after(second_probe, [this, asking, done] { ask(asking, done, true); });
      return;
    }
    done(bound);
    const std::lock_guard hold(probes_lock_);
    if (--probes_ == 0)
      probes_answered_.notify_all();
  });
}

// By the system clock: the tools that look for races do not know a wait by the steady one.
void SocketLinks::await_probes() noexcept {
  std::unique_lock hold(probes_lock_);
  probes_answered_.wait_until(hold, std::chrono::system_clock::now() + farewell,
                              [this] { return probes_ == 0; });
  peers_->publish_last();
}

} // namespace

std::shared_ptr<Links> make_links(World& world) {
  return std::make_shared<SocketLinks>(world);
}

} // namespace adverb::link
