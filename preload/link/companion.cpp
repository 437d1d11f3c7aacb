// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/companion.h"
#include "world/world.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <mutex>
#include <utility>

namespace adverb::link {

Companion::Companion(World& world, std::shared_ptr<Device> device, Role role,
                     std::shared_ptr<Protocol> protocol)
    : Channel(*device, role), world_(world), device_(std::move(device)),
      protocol_(std::move(protocol)) {}

uint32_t Companion::timeout_for(const LocalQp& qp) noexcept {
  return std::max<uint32_t>(14, qp.timeout);
}

int Companion::connect(const LocalQp& qp, const Remote& remote, std::vector<std::byte> nonce,
                       std::function<void(bool)> proven) {
  assert(!device_->lock().held());
  // Any thread may poll the first message the moment the queue pair is up.
  const std::lock_guard hold(device_->lock());
  credits_ = std::min(credits_, remote.credits);
  message_max_ = std::min(message_max_, remote.message_max);
  version_ = std::min(version_, remote.version);
  const int rc = attach(qp, remote);
  if (rc == 0) {
    nonce_ = std::move(nonce);
    on_proof_ = std::move(proven);
  }
  return rc;
}

void Companion::send_proof(std::span<const std::byte> nonce) {
  if (std::byte* message = acquire()) {
    memcpy(message, nonce.data(), nonce.size());
    send(message, nonce.size());
  }
}

void Companion::received(RxBuffer message) {
  assert(device_->lock().held());
  if (finished_)
    return;
  if (!proven_) {
    const auto bytes = message.bytes();
    proven_ =
        !nonce_.empty() && std::equal(bytes.begin(), bytes.end(), nonce_.begin(), nonce_.end());
    if (!proven_) {
      world_.counters.count(observe::Counter::auth_failures);
      if (peer() != nullptr)
        peer()->count(Peer::Number::auth_failures);
      if (world_.log.every("companion-proof", 10))
        world_.log.warn("a peer could not prove that it owns the queue pair it spoke for; its "
                        "channel is closed");
    }
    if (proven_)
      opened(*protocol_);
    if (auto tell = std::move(on_proof_))
      tell(proven_);
    if (!proven_)
      close();
    return;
  }
  if (user())
    user()->on_message(std::move(message));
}

// May be called with any lock held, so what follows happens on the service thread.
void Companion::close() noexcept {
  if (down_.exchange(true))
    return;
  world_.service.run([self = std::static_pointer_cast<Companion>(shared_from_this())] {
    const std::lock_guard hold(self->device_->lock());
    self->finish();
  });
}

void Companion::finish() {
  assert(device_->lock().held());
  if (finished_)
    return;
  finished_ = true;
  stop();
  if (auto tell = std::move(on_proof_))
    tell(false);
  ended();
}

} // namespace adverb::link
