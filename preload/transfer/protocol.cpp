// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "transfer/protocol.h"
#include "link/socket_links.h"
#include "transfer/initiator.h"
#include "transfer/messages.h"
#include "transfer/responder.h"
#include "world/world.h"

namespace adverb::transfer {
namespace {

constexpr link::Protocol::Size longest{header_bytes + 131072, 8};
constexpr link::Protocol::Size large{header_bytes + 65536, 8};
constexpr link::Protocol::Size small{header_bytes + 4096, 16};
constexpr uint64_t budget_for_large = 4U << 20;
// A channel has two credits however little is left, and each is a buffer both ways: beyond the
// budget these are of short messages, 25 KiB where long ones would pin 384.
constexpr uint64_t left_for_large = 1U << 20;
// The first channels, which are all that most processes have, may have twice as long ones: 2.3 MiB,
// where four times as much is left.
constexpr uint64_t left_for_longest = 8U << 20;

class TransferProtocol final : public link::Protocol {
public:
  TransferProtocol(World& world, std::shared_ptr<const Handlers> handlers, Targets& targets)
      : world_(world), handlers_(std::move(handlers)), targets_(targets) {}

  uint8_t id() const noexcept override { return protocol_id; }
  // 1: notices; 2: shared messages; 3: leases; 4: views; 5: that the CPU is short; 6: SENDs.
  uint8_t version() const noexcept override { return version_sends; }
  Size size(uint64_t budget, uint64_t left) const noexcept override {
    if (budget < budget_for_large || left < left_for_large)
      return small;
    return left < left_for_longest ? large : longest;
  }
  std::shared_ptr<link::ChannelUser> open(const std::shared_ptr<link::Channel>& channel) override {
    if (channel->role() == link::Channel::Role::client)
      return std::make_shared<Initiator>(world_, channel);
    return std::make_shared<Responder>(world_, channel, handlers_, targets_);
  }

private:
  World& world_;
  const std::shared_ptr<const Handlers> handlers_;
  Targets& targets_;
};

} // namespace

std::shared_ptr<link::Protocol>
make_protocol(World& world, std::shared_ptr<const Handlers> handlers, Targets& targets) {
  return std::make_shared<TransferProtocol>(world, std::move(handlers), targets);
}

} // namespace adverb::transfer

namespace adverb {

transfer::Targets& World::targets() {
  return parts.targets.get([] { return std::make_shared<transfer::Targets>(); });
}

// Made here, as what links are for is known here.
link::Links& World::links() {
  return parts.links.get([this] {
    auto links = link::make_links(*this);
    links->serve(transfer::make_protocol(
        *this, std::make_shared<transfer::Handlers>(transfer::handler_list()), targets()));
    return links;
  });
}

} // namespace adverb
