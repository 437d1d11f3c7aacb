// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "endpoint/endpoint.h"
#include "memory/own_fds.h"
#include "reliability/choose.h"
#include "world/world.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace adverb::endpoint {
namespace {

using reliability::Detection;
using reliability::Layout;
using reliability::Parity;
using reliability::Scheme;
using reliability::Unit;

constexpr uint32_t chunk_default = 64 * 1024;
constexpr uint32_t chunk_most = 1U << 30;
constexpr uint32_t receives_default = 4096;
constexpr uint32_t receives_most = 1U << 16;
constexpr uint32_t sends = 256;
constexpr uint32_t address_magic = 0x41504441; // "ADPA"
constexpr uint32_t address_version = 1;
constexpr uint8_t k_default = 32;
constexpr uint8_t m_default = 8;
constexpr size_t messages_most = size_t{1} << 16; // of one direction, not released

struct Address {
  uint32_t magic = address_magic;
  uint32_t version = address_version;
  uint64_t identity = 0; // of the endpoint, never the same twice
  uint32_t chunk_bytes = 0;
  uint32_t zero = 0;
  QueueAddress queue;
};
static_assert(sizeof(Address) <= sizeof(adverb_address));

// In one direction between two endpoints; what another pair sends has another.
uint64_t epoch_of(uint64_t from, uint64_t to) noexcept {
  return from ^ std::rotl(to, 1);
}

observe::Counter counter_of(const Scheme& scheme) noexcept {
  using observe::Counter;
  switch (scheme.parity) {
  case Parity::xor_parity:
    return Counter::endpoint_messages_xor;
  case Parity::mds:
    return Counter::endpoint_messages_mds;
  case Parity::none:
    break;
  }
  return scheme.detection == Detection::nack ? Counter::endpoint_messages_nack
                                             : Counter::endpoint_messages_timeout;
}

int new_descriptor() noexcept {
  const int fd = own_fds::raised(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (fd >= 0)
    own_fds::add(fd);
  return fd;
}

} // namespace

Endpoint::Endpoint(World& world, ibv_pd* pd, const adverb_endpoint_options& options, Chunks chunks)
    : world_(world), pd_(pd), options_(options), chunks_(chunks) {}

std::shared_ptr<Endpoint> Endpoint::make(World& world, ibv_pd* pd,
                                         const adverb_endpoint_options& options, int& why,
                                         Chunks chunks) {
  std::shared_ptr<Endpoint> endpoint(new Endpoint(world, pd, options, chunks));
  why = endpoint->set_up();
  return why == 0 ? endpoint : nullptr;
}

int Endpoint::set_up() {
  auto& o = options_;
  o.port = o.port == 0 ? 1 : o.port;
  o.chunk_bytes = o.chunk_bytes == 0 ? chunk_default : o.chunk_bytes;
  o.receives = o.receives == 0 ? receives_default : o.receives;
  o.silence_ns = o.silence_ns == 0 ? 10'000'000'000 : o.silence_ns;
  if ((o.flags & ~uint32_t{ADVERB_MANUAL_PROGRESS | ADVERB_GID_INDEX}) != 0 ||
      o.transport > ADVERB_TRANSPORT_UD || o.port > UINT8_MAX || o.gid_index > UINT8_MAX ||
      o.chunk_bytes > chunk_most || o.chunk_bytes < 4096 || o.receives > receives_most ||
      !(o.link_loss >= 0 && o.link_loss < 1) || o.silence_ns > uint64_t{INT64_MAX} / 2)
    return EINVAL;
  QueueOptions wanted;
  wanted.port = static_cast<uint8_t>(o.port);
  if ((o.flags & ADVERB_GID_INDEX) != 0)
    wanted.gid_index = static_cast<int>(o.gid_index);
  wanted.receives = o.receives;
  wanted.sends = sends;
  wanted.type = o.transport == ADVERB_TRANSPORT_UD ? IBV_QPT_UD : IBV_QPT_UC;
  queue_ = PacketQueue::make(world_, pd_, wanted);
  if (queue_ == nullptr && o.transport == ADVERB_TRANSPORT_AUTO) {
    wanted.type = IBV_QPT_UD; // few devices have UC
    queue_ = PacketQueue::make(world_, pd_, wanted);
  }
  if (queue_ == nullptr)
    return errno == EOPNOTSUPP || errno == EINVAL ? ENOTSUP : errno;
  world_.entropy.fill(&identity_, sizeof identity_);
  world_.counters.gauge_add(observe::Gauge::endpoints, 1);
  events_fd_ = new_descriptor();
  kick_fd_ = new_descriptor();
  return events_fd_ < 0 || kick_fd_ < 0 ? errno : 0;
}

Endpoint::~Endpoint() {
  close();
  for (const int fd : {events_fd_, kick_fd_})
    if (fd >= 0)
      own_fds::shut(fd);
}

void Endpoint::address(adverb_address& out) const noexcept {
  Address address;
  address.identity = identity_;
  address.chunk_bytes = chunk_told();
  address.queue = queue_->address();
  out = {};
  memcpy(&out, &address, sizeof address);
}

bool Endpoint::leads_along(const adverb_address& address, const ibv_ah_attr& path) noexcept {
  Address there;
  memcpy(static_cast<void*>(&there), address.bytes, sizeof there);
  return path.is_global != 0
             ? memcmp(there.queue.gid, path.grh.dgid.raw, sizeof there.queue.gid) == 0
             : there.queue.lid == path.dlid;
}

int Endpoint::connect(const adverb_address& peer) {
  Address there;
  memcpy(static_cast<void*>(&there), peer.bytes, sizeof there);
  if (there.magic != address_magic || there.version != address_version || there.zero != 0)
    return EPROTO;
  const std::lock_guard hold(lock_);
  if (connected_ || closed_)
    return EISCONN;
  if (there.chunk_bytes != chunk_told())
    return EPROTOTYPE;
  if (const int rc = queue_->connect(there.queue); rc != 0)
    return rc;
  const uint32_t payload =
      queue_->packet_bytes() - static_cast<uint32_t>(sizeof(reliability::wire::Header));
  cut_ = {chunks_ == Chunks::of_a_packet ? payload : options_.chunk_bytes, payload};
  if (!cut_.valid())
    return EPROTOTYPE;
  reliability::PartyOptions party;
  party.cut = cut_;
  party.rate.bytes_per_second = static_cast<double>(options_.rate);
  party.rate.link_loss = options_.link_loss;
  party.silence = Time(static_cast<int64_t>(options_.silence_ns));
  party.receives = queue_->receives();
  party.epoch_out = epoch_of(identity_, there.identity);
  party.epoch_in = epoch_of(there.identity, identity_);
  party_.emplace(party);
  connected_ = true;
  if ((options_.flags & ADVERB_MANUAL_PROGRESS) != 0)
    return 0;
  const int rc = thread_.start("adverb-sdr", [this] { run(); });
  connected_ = rc == 0;
  return rc;
}

void Endpoint::close() {
  {
    const std::lock_guard hold(lock_);
    if (closed_)
      return;
    closed_ = true;
    if (queue_ != nullptr)
      queue_->stop();
    changed_.notify_all();
    rouse();
  }
  if (thread_.joinable())
    thread_.join();
  const std::lock_guard hold(lock_);
  if (connected_)
    count();
  if (queue_ != nullptr && identity_ != 0)
    world_.counters.gauge_add(observe::Gauge::endpoints, -1);
  queue_.reset();
}

Time Endpoint::now() const noexcept {
  return world_.clock.now();
}

auto Endpoint::incoming(uint64_t number) noexcept -> Incoming* {
  const auto at = incoming_.find(number);
  return at == incoming_.end() ? nullptr : &at->second;
}

auto Endpoint::outgoing(uint64_t number) noexcept -> Outgoing* {
  const auto at = outgoing_.find(number);
  return at == outgoing_.end() ? nullptr : &at->second;
}

int Endpoint::send(const void* buffer, size_t bytes, const adverb_send_options& options,
                   uint64_t& number) {
  if ((buffer == nullptr && bytes != 0) || options.repair > ADVERB_REPAIR_MDS ||
      options.by_chunk > 1 || options.streaming > 1 || options.reserved != 0)
    return EINVAL;
  Scheme scheme;
  scheme.unit = options.by_chunk != 0 ? Unit::chunk : Unit::packet;
  switch (options.repair) {
  case ADVERB_REPAIR_TIMEOUT:
    scheme.detection = Detection::timeout;
    break;
  case ADVERB_REPAIR_XOR:
  case ADVERB_REPAIR_MDS:
    scheme.parity = options.repair == ADVERB_REPAIR_XOR ? Parity::xor_parity : Parity::mds;
    scheme.k = options.k == 0 ? k_default : options.k;
    scheme.m = options.m == 0 ? m_default : options.m;
    break;
  default:
    break;
  }
  if (!scheme.valid())
    return EINVAL;
  const std::lock_guard hold(lock_);
  if (closed_)
    return EBADF;
  if (!connected_)
    return ENOTCONN;
  if (broken_)
    return EPIPE;
  if (!Layout::fits(cut_, bytes))
    return EMSGSIZE;
  if (outgoing_.size() >= messages_most)
    return ENOBUFS;
  if (options.repair == ADVERB_REPAIR_AUTO) {
    const Unit unit = scheme.unit;
    scheme = auto_scheme(bytes);
    scheme.unit = unit;
  }
  world_.counters.count(counter_of(scheme));
  number = party_->send(static_cast<const std::byte*>(buffer), bytes, scheme, options.immediate,
                        options.streaming != 0);
  outgoing_.insert({number, {bytes, options.immediate, options.context}});
  make_progress();
  rouse();
  return 0;
}

// The scheme of least mean for one message by the model, fed with what was measured on this path.
// The choice costs up to milliseconds, so it stands until a measurement has moved by an eighth.
Scheme Endpoint::auto_scheme(uint64_t bytes) {
  const auto& rate = party_->sender().rate();
  if (rate.smoothed_round_trip() == Time{0} || bytes == 0)
    return {};
  reliability::Transfer transfer;
  transfer.message_bytes = bytes;
  transfer.chunk_bytes = cut_.chunk_bytes;
  transfer.packet_bytes = cut_.packet_bytes;
  transfer.bytes_per_second = rate.delivery_rate();
  transfer.rtt_ns = static_cast<double>(rate.smoothed_round_trip().count());
  transfer.packet_loss = std::max(rate.loss(), options_.link_loss);
  if (reliability::is_one_of_many(transfer, party_->sender().unsent() * cut_.packet_bytes))
    return {};
  const auto moved = [](double before, double now) {
    constexpr double enough = 1.125;
    return now > before * enough || now * enough < before;
  };
  if (chosen_for_.message_bytes != bytes ||
      moved(chosen_for_.bytes_per_second, transfer.bytes_per_second) ||
      moved(chosen_for_.rtt_ns, transfer.rtt_ns) ||
      moved(chosen_for_.packet_loss, transfer.packet_loss)) {
    chosen_ = reliability::choose_scheme(transfer).scheme;
    chosen_for_ = transfer;
  }
  return chosen_;
}

int Endpoint::send_ready(uint64_t number, size_t offset, size_t bytes) {
  const std::lock_guard hold(lock_);
  const Outgoing* const m = outgoing(number);
  if (m == nullptr)
    return EBADF;
  if (offset > m->bytes || bytes > m->bytes - offset)
    return EINVAL;
  party_->ready(number, offset, bytes);
  make_progress();
  rouse();
  return 0;
}

int Endpoint::receive(void* buffer, size_t bytes, const adverb_receive_options& options,
                      uint64_t& number) {
  if ((buffer == nullptr && bytes != 0) || options.deadline_ns > uint64_t{INT64_MAX} / 2)
    return EINVAL;
  const std::lock_guard hold(lock_);
  if (closed_)
    return EBADF;
  if (!connected_)
    return ENOTCONN;
  if (broken_)
    return EPIPE;
  if (!Layout::fits(cut_, bytes))
    return EMSGSIZE;
  if (incoming_.size() >= messages_most)
    return ENOBUFS;
  const Time deadline =
      options.deadline_ns == 0 ? Time{0} : now() + Time(static_cast<int64_t>(options.deadline_ns));
  number = party_->receive(static_cast<std::byte*>(buffer), bytes, deadline);
  incoming_.insert({number, {bytes, options.context}});
  make_progress();
  rouse();
  return 0;
}

int Endpoint::query(uint64_t number, adverb_receive_state& out) {
  const std::lock_guard hold(lock_);
  const Incoming* const m = incoming(number);
  if (m == nullptr)
    return EBADF;
  const auto counts = party_->receiver().counts(number);
  const auto head = party_->receiver().head(number);
  out = {};
  out.size = sizeof out;
  static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));
  out.bitmap = reinterpret_cast<const uint64_t*>(party_->receiver().bitmap(number));
  out.chunks = counts.chunks;
  out.chunks_set = counts.chunks_set;
  out.chunk_bytes = cut_.chunk_bytes;
  out.status = m->status;
  out.begun = head.has_value() ? 1 : 0;
  if (head) {
    out.immediate = head->immediate;
    out.bytes = head->bytes;
    out.packets = counts.packets;
    out.packets_set = counts.packets_set;
  }
  return 0;
}

int Endpoint::packets(uint64_t number, uint64_t* words, size_t count) {
  if (words == nullptr && count != 0)
    return EINVAL;
  const std::lock_guard hold(lock_);
  if (incoming(number) == nullptr)
    return EBADF;
  const auto* const there = party_->receiver().packets(number);
  if (there == nullptr)
    return EAGAIN;
  for (size_t i = 0; i < count; ++i)
    words[i] = i < there->size() ? (*there)[i] : 0;
  return 0;
}

int Endpoint::notify(uint64_t number, uint32_t chunks) {
  const std::lock_guard hold(lock_);
  Incoming* const m = incoming(number);
  if (m == nullptr)
    return EBADF;
  if (chunks == 0)
    return EINVAL;
  if (m->status != ADVERB_OPEN) // its own event is the last that names it
    return ECANCELED;
  notifies_ += m->notify_at == 0 ? 1 : 0;
  m->notify_at = chunks;
  take_events();
  return 0;
}

int Endpoint::poll_event(adverb_event& out, MessageName& name) {
  const std::lock_guard hold(lock_);
  if (closed_)
    return EBADF;
  if (events_.empty())
    return EAGAIN;
  out = events_.front().event;
  name = events_.front().name;
  events_.pop_front();
  if (events_.empty() && events_signaled_) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t unused = read(events_fd_, &count, sizeof count);
    events_signaled_ = false;
  }
  return 0;
}

int Endpoint::finish(uint64_t number, End how) {
  const std::lock_guard hold(lock_);
  const Incoming* const m = incoming(number);
  if (m == nullptr)
    return EBADF;
  if (m->status != ADVERB_OPEN)
    return 0; // its event says how
  party_->finish(number, how);
  make_progress();
  rouse();
  return 0;
}

int Endpoint::cancel(MessageName name) {
  if (!name.sends)
    return finish(name.number, End::cancelled);
  const std::lock_guard hold(lock_);
  if (outgoing(name.number) == nullptr)
    return EBADF;
  party_->cancel(name.number);
  make_progress();
  rouse();
  return 0;
}

int Endpoint::release(MessageName name) {
  const std::lock_guard hold(lock_);
  if (name.sends) {
    const Outgoing* const m = outgoing(name.number);
    if (m == nullptr)
      return EBADF;
    if (m->status == ADVERB_OPEN)
      return EBUSY;
    outgoing_.erase(name.number);
    return 0;
  }
  const Incoming* const m = incoming(name.number);
  if (m == nullptr)
    return EBADF;
  if (m->status == ADVERB_OPEN)
    return EBUSY;
  party_->release(name.number);
  incoming_.erase(name.number);
  return 0;
}

int Endpoint::progress() {
  const std::lock_guard hold(lock_);
  if (closed_)
    return EBADF;
  if (!connected_)
    return ENOTCONN;
  return make_progress() ? 0 : EAGAIN;
}

auto Endpoint::path() -> Path {
  const std::lock_guard hold(lock_);
  if (!party_)
    return {};
  const auto& rate = party_->sender().rate();
  return {rate.smoothed_round_trip(), std::max(rate.loss(), party_->loss_here())};
}

void Endpoint::sound(uint32_t packets) {
  const std::lock_guard hold(lock_);
  if (!connected_ || closed_ || broken_)
    return;
  party_->sender().sound(packets);
  make_progress();
  rouse();
}

void Endpoint::statistics(adverb_statistics& out) {
  const std::lock_guard hold(lock_);
  out = {};
  out.size = sizeof out;
  if (!connected_)
    return;
  const auto& from = party_->sender().stats();
  const auto& to = party_->receiver().stats();
  out.sent = from.packets;
  out.sent_again = from.repairs;
  out.sent_parity = from.parity;
  out.lost = from.lost;
  out.received = to.packets;
  out.duplicates = to.duplicates;
  out.late = to.late;
  out.early = to.early;
  out.starved = to.starved;
  out.decoded = to.decoded;
  out.round_trip_ns = static_cast<uint64_t>(party_->sender().rate().smoothed_round_trip().count());
  out.loss = party_->sender().rate().loss();
  out.rate = party_->sender().rate().bytes_per_second();
}

} // namespace adverb::endpoint
