// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/packet_companion.h"
#include "link/packet_room.h"
#include "link/receive_pool.h"
#include "world/no_cancel.h"
#include "world/world.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <new>
#include <sys/epoll.h>
#include <utility>

namespace adverb::link {

using endpoint::Endpoint;
using endpoint::MessageName;
using observe::Counter;

namespace {

// A buffer is free when the peer has said that the message is there, which may be said later than
// the answer to it.
constexpr uint32_t sends_of_credit = 2;
constexpr uint32_t line = 64; // what UD puts before a packet, at most
// A peer that is stopped is no dead one: under RC its device would answer meanwhile. One that has
// ended is known by its connection.
constexpr uint64_t silence_ns = 60'000'000'000;
constexpr int events_at_once = 64;
constexpr size_t message_most = packet_room::message_bytes + 256; // with its header

} // namespace

// Buffers of messages from the peer, in the order of their receives. Lives as long as one of them
// is with a user.
class PacketCompanion::Receives final : public RxBuffer::Pool,
                                        public std::enable_shared_from_this<Receives> {
public:
  Receives(std::shared_ptr<Endpoint> endpoint, uint32_t count, size_t stride)
      : endpoint_(std::move(endpoint)),
        memory_(std::make_unique_for_overwrite<std::byte[]>(count * stride)), stride_(stride),
        count_(count) {}

  // Posts all. `channel`: whose they are. errno value.
  int open(std::weak_ptr<Channel> channel) {
    channel_ = std::move(channel);
    for (uint32_t slot = 0; slot < count_; ++slot)
      if (const int rc = post(slot); rc != 0)
        return rc;
    return 0;
  }
  // The message of a receive is there.
  void came(uint64_t number, uint64_t bytes) {
    const std::lock_guard hold(lock_);
    const auto at = std::ranges::lower_bound(posted_, number, {}, &Posted::number);
    assert(at != posted_.end() && at->number == number);
    at->bytes = bytes;
    at->here = true;
  }
  // The next one in order, if it is there.
  std::optional<RxBuffer> next() {
    const std::lock_guard hold(lock_);
    if (posted_.empty() || !posted_.front().here)
      return std::nullopt;
    const Posted first = posted_.front();
    posted_.pop_front();
    if (lent_++ == 0)
      self_ = shared_from_this();
    return RxBuffer(*this, first.slot, {memory_.get() + first.slot * stride_, first.bytes});
  }
  void take_back(uint32_t slot) noexcept override {
    std::shared_ptr<Receives> last; // which may be this one's
    try {
      const NoCancel whole;
      post(slot); // refused when the endpoint has ended, and then no matter
    } catch (const std::bad_alloc&) {
      if (const auto channel = channel_.lock())
        channel->close(); // with a buffer less the peer would wait
    }
    const std::lock_guard hold(lock_);
    if (--lent_ == 0)
      last = std::move(self_);
  }

private:
  struct Posted {
    uint64_t number;
    uint32_t slot;
    uint64_t bytes = 0;
    bool here = false;
  };

  int post(uint32_t slot) {
    adverb_receive_options options{};
    options.size = sizeof options;
    const std::lock_guard hold(lock_);
    posted_.push_back({0, slot});
    const int rc =
        endpoint_->receive(memory_.get() + slot * stride_, stride_, options, posted_.back().number);
    if (rc != 0)
      posted_.pop_back();
    return rc;
  }

  const std::shared_ptr<Endpoint> endpoint_;
  std::weak_ptr<Channel> channel_;
  const std::unique_ptr<std::byte[]> memory_; // resident once it is used
  const size_t stride_;
  const uint32_t count_;
  Mutex lock_; // before the endpoint's
  std::deque<Posted> posted_;
  uint32_t lent_ = 0;
  std::shared_ptr<Receives> self_; // while any is lent
};

PacketCompanion::PacketCompanion(World& world, std::shared_ptr<Device> device, Role role,
                                 std::shared_ptr<Protocol> protocol)
    : Companion(world, std::move(device), role, std::move(protocol)) {}

PacketCompanion::~PacketCompanion() {
  if (pinned_ != 0)
    device_->unpinned(pinned_);
}

std::shared_ptr<PacketCompanion> PacketCompanion::make(World& world, std::shared_ptr<Device> device,
                                                       Role role,
                                                       std::shared_ptr<Protocol> protocol,
                                                       uint32_t credits, const LocalQp& path) {
  std::shared_ptr<PacketCompanion> c(
      new PacketCompanion(world, std::move(device), role, std::move(protocol)),
      &PacketCompanion::retire);
  if (const int rc = c->set_up(credits, path); rc != 0) {
    c.reset();
    errno = rc;
    return nullptr;
  }
  return c;
}

int PacketCompanion::set_up(uint32_t credits, const LocalQp& path) {
  Device& d = *device_;
  message_max_ = std::min(protocol_->size(d.budget(), d.left()).message, message_most);
  stride_ = buffer_stride(message_max_);
  credits_ = std::min(credits, packet_room::messages(d.budget()));
  version_ = protocol_->version();
  ibv_port_attr port{};
  {
    const provider::Inside inside;
    if (const int rc = world_.provider.real().ibv_query_port(
            d.context(), path.ah.port_num, reinterpret_cast<_compat_ibv_port_attr*>(&port));
        rc != 0)
      return rc;
  }
  const uint64_t packet = (uint64_t{128} << port.active_mtu) + line;
  const uint32_t receives = packet_room::receives(d.left(), packet);
  if (receives == 0)
    return ENOMEM;
  adverb_endpoint_options options{};
  options.size = sizeof options;
  options.flags = ADVERB_GID_INDEX;
  options.port = path.ah.port_num;
  options.gid_index = path.ah.grh.sgid_index;
  options.receives = receives;
  options.silence_ns = silence_ns;
  int rc = 0;
  // Nobody here asks for the bitmap, and parity of a message of some KiB is to be some KiB.
  endpoint_ = Endpoint::make(world_, d.pd(), options, rc, Endpoint::Chunks::of_a_packet);
  if (endpoint_ == nullptr)
    return rc;
  adverb_address address;
  endpoint_->address(address);
  address_ = std::bit_cast<wire::PacketAddress>(address);
  qpn_ = endpoint_->qpn();
  pinned_ = (receives + packet_room::packets_to_send) * packet;
  d.pinned(pinned_);
  const uint32_t sends = (credits_ + beside) * sends_of_credit;
  memory_ = std::make_unique_for_overwrite<std::byte[]>(sends * stride_);
  free_.reserve(sends);
  for (uint32_t i = sends; i-- > 0;)
    free_.push_back(i);
  receives_ = std::make_shared<Receives>(endpoint_, credits_ + beside, stride_);
  return 0;
}

int PacketCompanion::attach(const LocalQp& qp, const Remote& remote) {
  if (!remote.packets)
    return EPROTO;
  const auto address = std::bit_cast<adverb_address>(*remote.packets);
  // Packets go where the queue pair's do, or nothing would be proven by them.
  if (!Endpoint::leads_along(address, qp.ah))
    return EPROTO;
  if (const int rc = endpoint_->connect(address); rc != 0)
    return rc;
  if (const int rc = receives_->open(weak_from_this()); rc != 0)
    return rc;
  world_.service.run([weak = std::weak_ptr(shared_from_this())] {
    if (const auto self = std::static_pointer_cast<PacketCompanion>(weak.lock()))
      self->watch();
  });
  return 0;
}

void PacketCompanion::watch() {
  if (down())
    return;
  watched_ = true;
  world_.service.watch(
      endpoint_->descriptor(), EPOLLIN, [weak = std::weak_ptr(shared_from_this())](uint32_t) {
        if (const auto self = std::static_pointer_cast<PacketCompanion>(weak.lock()))
          self->take_events();
      });
}

void PacketCompanion::unwatch() noexcept {
  if (std::exchange(watched_, false))
    world_.service.unwatch(endpoint_->descriptor());
}

void PacketCompanion::take_events() {
  const std::lock_guard hold(device_->lock());
  adverb_event event;
  MessageName name;
  for (int i = 0; i < events_at_once && !down() && endpoint_->poll_event(event, name) == 0; ++i) {
    if (event.status != ADVERB_COMPLETE) {
      if (world_.log.every("packets", 10))
        world_.log.warn("a companion of packets has ended: {}",
                        event.status == ADVERB_SILENT ? "the peer gives no sign of life"
                                                      : "its queue pair or its peer's has failed");
      close();
      break;
    }
    endpoint_->release(name);
    if (name.sends) {
      sent(event);
      continue;
    }
    receives_->came(name.number, event.bytes);
    while (auto message = receives_->next())
      received(std::move(*message));
  }
}

void PacketCompanion::judge_path() noexcept {
  if (judged_.exchange(true))
    return;
  try {
    world_.service.run([weak = std::weak_ptr(shared_from_this())] {
      if (const auto self = std::static_pointer_cast<PacketCompanion>(weak.lock()))
        self->sound();
    });
  } catch (const std::bad_alloc&) { // the device keeps what it has
    world_.counters.count(Counter::exceptions_caught);
  }
}

// While the program posts nothing, nothing is measured: an idle program stays idle.
void PacketCompanion::sound() {
  if (down())
    return;
  const Endpoint::Path path = endpoint_->path();
  if (judge_.judge(path.round_trip, path.loss)) {
    pays_ = judge_.pays();
    world_.counters.count(Counter::path_changes);
    world_.log.info("a path of {:.2f} ms round trip loses {:.3f} % of its packets: {} from now on",
                    std::chrono::duration<double, std::milli>(path.round_trip).count(),
                    path.loss * 100,
                    judge_.pays() ? "adverb makes them good" : "the device's reliability does");
    const std::lock_guard hold(device_->lock());
    if (user())
      user()->on_path_judged();
  }
  const uint64_t posts =
      world_.counters.value(Counter::posts_offload) + world_.counters.value(Counter::link_messages);
  const auto [packets, pause] = judge_.next(std::exchange(posts_seen_, posts) != posts);
  if (packets != 0) {
    world_.counters.count(Counter::path_soundings, packets);
    endpoint_->sound(packets);
  }
  world_.service.after(pause, [weak = std::weak_ptr(shared_from_this())] {
    if (const auto self = std::static_pointer_cast<PacketCompanion>(weak.lock()))
      self->sound();
  });
}

void PacketCompanion::sent(const adverb_event& event) {
  bool tell = false;
  {
    const std::lock_guard hold(lock_);
    free_.push_back(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(event.context)));
    tell = std::exchange(starved_, false);
  }
  if (tell && user())
    user()->on_tx_free();
}

std::byte* PacketCompanion::acquire() noexcept {
  const std::lock_guard hold(lock_);
  if (free_.empty() || down()) {
    starved_ = true;
    return nullptr;
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  return memory_.get() + index * stride_;
}

void PacketCompanion::abandon(std::byte* message) noexcept {
  const std::lock_guard hold(lock_);
  free_.push_back(static_cast<uint32_t>(static_cast<size_t>(message - memory_.get()) / stride_));
}

void PacketCompanion::send(std::byte* message, size_t bytes) noexcept {
  const auto index = static_cast<size_t>(message - memory_.get()) / stride_;
  adverb_send_options options{};
  options.size = sizeof options;
  options.context = reinterpret_cast<void*>(index);
  int rc = ENOMEM;
  // One sender at a time: order of messages is order of requests.
  const std::lock_guard hold(lock_);
  const NoCancel whole;
  try {
    uint64_t number = 0;
    rc = down() ? EPIPE : endpoint_->send(message, bytes, options, number);
  } catch (const std::bad_alloc&) {
    world_.counters.count(Counter::exceptions_caught);
  }
  if (rc == 0)
    return world_.counters.count(Counter::link_messages);
  free_.push_back(static_cast<uint32_t>(index));
  close();
}

// The endpoint's thread takes none of our locks.
void PacketCompanion::stop() noexcept {
  unwatch();
  endpoint_->close();
}

// The last owner may hold any lock, and may be the endpoint's own thread; that is joined here.
void PacketCompanion::retire(PacketCompanion* companion) {
  companion->down_ = true;
  companion->world_.service.run([companion] {
    companion->unwatch();
    if (companion->endpoint_)
      companion->endpoint_->close();
    delete companion;
  });
}

} // namespace adverb::link
