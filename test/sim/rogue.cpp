// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "rogue.h"
#include "handlers.h"
#include "link/socket_links.h"
#include "transfer/messages.h"
#include "transfer/protocol.h"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace sim {

namespace link = adverb::link;
using link::wire::Answer;

Rogue::Rogue(Choices& choices, Fabric& fabric, Net& net, const adverb::policy::Policy& policy)
    : choices_(choices), fabric_(fabric), net_(net), world_({.clock = clock_,
                                                             .entropy = entropy_,
                                                             .service = service_,
                                                             .real = &Fabric::real(),
                                                             .policy = &policy,
                                                             .edge = &edge_,
                                                             .log_sink = &words_,
                                                             .shared_page = false}),
      device_(fabric.device()), links_(link::make_links(world_)) {
  Fabric::real().ibv_open_device(device_); // as its program would
  net_.wires->add(world_, 0);
  links_->serve(adverb::transfer::make_protocol(world_, make_handlers(), world_.targets()));
}

Rogue::~Rogue() = default;

// In the name of one that has just been proven.
void Rogue::begin() {
  victim_ = net_.proven[choices_.below(static_cast<uint32_t>(net_.proven.size()))];
  link::LocalQp lie = victim_.qp;
  lie.device = device_;
  lie.handle = handle_ = victim_.qp.handle + 1'000'000;
  links_->bind(lie, adverb::transfer::protocol_id, [this](const link::Bound& bound) {
    bound_ = bound;
    if (bound.verdict != link::Verdict::adverb || bound.remote_handle != victim_.owner)
      return; // it has been reset since
    asks_ = 4;
    links_->claim(handle_, victim_.key, [this](const link::Offer& offer) { use(offer); });
  });
}

// What its own queue pair would do in that domain.
void Rogue::use(const link::Offer& offer) {
  if (offer.answer != Answer::ok)
    return;
  std::byte* const slot = fabric_.at(offer.rkey, offer.address);
  if (slot == nullptr)
    return;
  link::wire::Share read{};
  if (offer.kind == link::SlotKind::write)
    memcpy(slot, offer.share.data(), offer.share.size());
  else
    memcpy(read.data(), slot, offer.kind == link::SlotKind::read ? read.size() : 8);
  links_->prove(handle_, read, [this](Answer answer) {
    if (answer == Answer::ok)
      net_.misuse.emplace_back("a second process has proven a queue pair to be its own");
  });
}

void Rogue::ask(uint64_t source) {
  namespace transfer = adverb::transfer;
  --asks_;
  if (bound_.channel->down())
    return;
  std::byte* const message = bound_.channel->acquire();
  if (message == nullptr)
    return;
  const auto cell = net_.reachable_by(victim_.qp.dest_qpn);
  constexpr uint64_t value = 0xDEAD'DEAD'DEAD'DEAD;
  transfer::RequestHeader request{};
  request.kind = static_cast<uint8_t>(transfer::Kind::write);
  request.flags = transfer::last_part;
  request.run = 1;
  request.target = victim_.owner;
  request.source = source;
  request.address = request.total_address = cell.first;
  request.length = request.total = sizeof value;
  request.key = cell.second;
  memcpy(message, &request, sizeof request);
  memcpy(message + sizeof request, &value, sizeof value);
  bound_.channel->send(message, sizeof request + sizeof value);
}

void Rogue::offer(Steps& steps) {
  if (handle_ == 0 && !net_.proven.empty())
    steps.emplace_back(0, [this] { begin(); });
  if (asks_ != 0)
    steps.emplace_back(0, [this] { ask(choices_.once_in(2) ? handle_ : victim_.qp.handle); });
  if (fabric_.has_messages(device_))
    steps.emplace_back(0, [this] { links_->progress(device_)->progress(); });
  if (!service_.tasks.empty())
    steps.emplace_back(0, [this] {
      const auto task = std::move(service_.tasks.front());
      service_.tasks.pop_front();
      task();
    });
}

} // namespace sim
