// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "product_links.h"
#include "link/socket_links.h"

#include <utility>

namespace sim {

namespace link = adverb::link;

ProductLinks::ProductLinks(adverb::World& world, Net& net)
    : net_(net), links_(link::make_links(world)) {}

void ProductLinks::serve(std::shared_ptr<link::Protocol> protocol) {
  links_->serve(std::move(protocol));
}

void ProductLinks::publish(const link::LocalQp& qp) {
  net_.named(qp.qpn, this, qp.handle);
  links_->publish(qp);
}

void ProductLinks::withdraw(uint32_t qpn, uint64_t handle) {
  net_.unnamed(qpn);
  links_->withdraw(qpn, handle);
}

void ProductLinks::bind(const link::LocalQp& qp, uint8_t protocol,
                        std::function<void(link::Bound)> done) {
  bound_[qp.handle].qp = qp;
  links_->bind(qp, protocol, [this, handle = qp.handle, tell = std::move(done)](link::Bound bound) {
    bound_[handle].owner = bound.remote_handle;
    tell(std::move(bound));
  });
}

void ProductLinks::claim(uint64_t handle, uint32_t key,
                         std::function<void(const link::Offer&)> offered) {
  bound_[handle].key = key;
  links_->claim(handle, key, [this, handle, tell = std::move(offered)](const link::Offer& offer) {
    net_.offered(this, handle, offer);
    tell(offer);
  });
}

void ProductLinks::prove(uint64_t handle, const link::wire::Share& read,
                         std::function<void(link::wire::Answer)> done) {
  links_->prove(handle, read, [this, handle, tell = std::move(done)](link::wire::Answer answer) {
    if (answer == link::wire::Answer::ok && bound_[handle].owner != 0)
      net_.proven.push_back(bound_[handle]);
    tell(answer);
  });
}

} // namespace sim
