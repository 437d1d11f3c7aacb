// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The product's own links of a program (link/socket_links.h), of which the Net hears what it judges
// by.
#pragma once

#include "links.h"

#include <memory>

namespace sim {

class ProductLinks final : public adverb::link::Links {
public:
  ProductLinks(adverb::World& world, Net& net);

  void serve(std::shared_ptr<adverb::link::Protocol> protocol) override;
  void publish(const adverb::link::LocalQp& qp) override;
  void connected(const adverb::link::LocalQp& qp) override { links_->connected(qp); }
  void withdraw(uint32_t qpn, uint64_t handle) override;
  void bind(const adverb::link::LocalQp& qp, uint8_t protocol,
            std::function<void(adverb::link::Bound)> done) override;
  void cancel_bind(uint64_t handle) override { links_->cancel_bind(handle); }
  bool has_met(const adverb::link::LocalQp& qp, uint8_t protocol) const override {
    return links_->has_met(qp, protocol);
  }
  void claim(uint64_t handle, uint32_t key,
             std::function<void(const adverb::link::Offer&)> offered) override;
  void prove(uint64_t handle, const adverb::link::wire::Share& read,
             std::function<void(adverb::link::wire::Answer)> done) override;
  void unbind(uint64_t handle) override { links_->unbind(handle); }
  void probe(const adverb::link::LocalQp& qp,
             std::function<void(adverb::link::Bound)> done) override {
    links_->probe(qp, std::move(done));
  }
  std::shared_ptr<adverb::link::Progress> progress(ibv_device* device) override {
    return links_->progress(device);
  }
  void await_probes() noexcept override {}

  // A cell of the program's that peers may write to, as requests name it.
  std::function<uint64_t()> reachable;

private:
  Net& net_;
  std::map<uint64_t, Net::Proven> bound_; // by handle
  const std::shared_ptr<adverb::link::Links> links_;
};

} // namespace sim
