// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "wires.h"
#include "link/address.h"
#include "link/connection.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <sys/socket.h>
#include <utility>

namespace sim {

namespace link = adverb::link;
namespace wire = link::wire;

// Beyond every descriptor of this process.
constexpr int first_fd = 1 << 20;

Wires* Wires::present_ = nullptr;

Wires::Wires(Choices& choices) : choices_(choices), vouches_(choices.below(3)), next_(first_fd) {
  present_ = this;
}

Wires::~Wires() {
  present_ = nullptr;
}

int Wires::make() {
  ends_[next_]; // NOLINT(bugprone-unused-return-value): it is made by that
  return next_++;
}

void Wires::disown(adverb::World& world, uint32_t qpn) {
  auto& its = hosts_[&world].qpns;
  if (const auto at = its.find(qpn); at != its.end())
    its.erase(at);
}

void Wires::send(int fd, std::vector<std::byte>& bytes) {
  const End& mine = end(fd);
  if (!mine.stands)
    return;
  auto& other = end(mine.other);
  if (!mine.cut && !other.closed)
    other.coming.insert(other.coming.end(), bytes.begin(), bytes.end());
  bytes.clear();
}

void Wires::shut(int fd) {
  End& mine = end(fd);
  mine.closed = true;
  mine.stand = nullptr;
  mine.receive = nullptr;
  mine.lose = nullptr;
  if (mine.other >= 0)
    end(mine.other).over = true;
}

void Wires::cut() {
  const bool all = choices_.once_in(2);
  for (auto& [fd, mine] : ends_)
    if (!mine.closed && mine.stands && mine.other >= 0 && !mine.cut && (all || choices_.once_in(2)))
      mine.cut = end(mine.other).cut = true;
}

void Wires::close() {
  for (auto& [fd, mine] : ends_)
    mine.over = true;
}

// The broker speaks first.
void Wires::connect(int fd) {
  const int there = make();
  End& mine = end(fd);
  End& other = end(there);
  mine.other = there;
  other.other = fd;
  mine.stands = other.stands = true;
  const auto banner = wire::frame(wire::Banner{});
  mine.coming.assign(banner.begin(), banner.end());
  const auto tell = std::move(mine.stand);
  tell();
}

Wires::Host* Wires::owner_of(const End& end) {
  wire::Frame frame{};
  if (wire::parse(end.coming, frame) != wire::Parse::complete || frame.type != wire::Type::hello)
    return nullptr;
  const auto hello = wire::get<wire::Hello>(frame);
  std::vector<Host*> all;
  for (auto& [world, host] : hosts_)
    if (host.qpns.contains(hello.dqpn))
      all.push_back(&host);
  return all.empty() ? nullptr : all[hello.attempt % all.size()];
}

// What is behind the hello stays where it is.
void Wires::hand_over(int fd) {
  End& mine = end(fd);
  Host* const owner = owner_of(mine);
  wire::Frame frame{};
  if (mine.closed || mine.handed || wire::parse(mine.coming, frame) != wire::Parse::complete)
    return;
  const auto hello = wire::get<wire::Hello>(frame);
  if (owner == nullptr) {
    wire::HelloAck ack{};
    ack.answer = static_cast<uint32_t>(wire::Answer::no_such_qp);
    auto refusal = wire::frame(ack);
    send(fd, refusal);
    return shut(fd);
  }
  mine.coming.erase(mine.coming.begin(), mine.coming.begin() + static_cast<long>(frame.bytes));
  mine.handed = true;
  owner->accept(fd, hello);
}

// An owner that hears first ends what is just being opened, and who asked for that, not knowing yet
// of the loss, takes it for a refusal.
bool Wires::may_hear(const End& mine) const {
  const End& other = ends_.at(mine.other);
  return mine.cut && (!mine.handed || other.closed || other.settled);
}

void Wires::told(End& end, const wire::Frame& frame) const {
  end.settled =
      end.settled || frame.type == wire::Type::prove_ack || frame.type == wire::Type::resume_ack;
  if (!loud)
    return;
  uint64_t handle = 0; // most frames begin with one
  memcpy(&handle, frame.payload.data(), std::min(frame.payload.size(), sizeof handle));
  printf("        links: thread %u is told %u of %llx\n", hosts_.at(end.world).fibre,
         static_cast<unsigned>(frame.type), static_cast<unsigned long long>(handle));
}

void Wires::offer(Steps& steps) {
  for (auto& [number, mine] : ends_) {
    const int fd = number;
    if (mine.closed)
      continue;
    if (mine.world == nullptr) {
      wire::Frame frame{};
      const Host* const owner = owner_of(mine);
      if (!mine.handed && wire::parse(mine.coming, frame) == wire::Parse::complete)
        steps.emplace_back(owner == nullptr ? 0 : owner->fibre, [this, fd] { hand_over(fd); });
      continue;
    }
    const uint32_t fibre = hosts_.at(mine.world).fibre;
    if (!mine.stands && mine.stand) {
      steps.emplace_back(fibre, [this, fd] {
        if (!end(fd).closed && !end(fd).stands)
          connect(fd);
      });
    } else if (mine.lose && (may_hear(mine) || (mine.over && !mine.cut && mine.coming.empty()))) {
      steps.emplace_back(fibre, [this, fd] {
        if (const auto lose = std::move(end(fd).lose))
          lose(end(fd).cut);
      });
    } else if (mine.receive && !mine.coming.empty()) {
      steps.emplace_back(fibre, [this, fd] {
        End& one = end(fd);
        if (!one.receive || one.coming.empty())
          return;
        const auto bytes = static_cast<uint32_t>(one.coming.size());
        const long some = choices_.once_in(2) ? bytes : choices_.between(1, bytes);
        const std::vector<std::byte> piece(one.coming.begin(), one.coming.begin() + some);
        one.coming.erase(one.coming.begin(), one.coming.begin() + some);
        const auto receive = one.receive;
        receive(piece);
      });
    }
  }
}

} // namespace sim

// What the product has for that, and is not linked here.
namespace adverb::link {

using sim::Wires;

std::shared_ptr<Connection> Connection::make(World& world, int fd) {
  Wires::present().end(fd).world = &world;
  return std::shared_ptr<Connection>(new Connection(world, fd, Turn{1, 512}));
}

Connection::~Connection() {
  close();
}

void Connection::start(OnFrame on_frame, std::function<void(const char*)> on_close) {
  on_frame_ = std::move(on_frame);
  on_close_ = std::move(on_close);
  auto& end = Wires::present().end(fd_);
  end.stand = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->flush();
      if (self->has_sent_)
        self->stands();
    }
  };
  end.receive = [weak = weak_from_this()](std::span<const std::byte> bytes) {
    if (const auto self = weak.lock()) {
      self->in_.insert(self->in_.end(), bytes.begin(), bytes.end());
      self->dispatch();
    }
  };
  end.lose = [weak = weak_from_this()](bool cut) {
    if (const auto self = weak.lock()) {
      self->cut_ = cut && self->has_sent_;
      self->fail(cut ? "the network gave it up" : "closed by the peer");
    }
  };
}

void Connection::when_standing(std::function<void()> tell) {
  standing_ = std::move(tell);
  if (has_sent_)
    stands();
}

void Connection::stands() {
  if (const auto tell = std::exchange(standing_, nullptr))
    tell();
}

void Connection::poll_now() {}

void Connection::rest(std::chrono::nanoseconds length) {
  if (fd_ < 0 || rests_ != 0)
    return;
  rests_ = world_.service.after(length, [weak = weak_from_this()] {
    if (const auto self = weak.lock())
      self->listen_again();
  });
}

void Connection::listen_again() {
  rests_ = 0;
  const auto keep = shared_from_this();
  dispatch();
}

void Connection::send(std::span<const std::byte> frame) {
  if (fd_ < 0)
    return;
  out_.insert(out_.end(), frame.begin(), frame.end());
  flush();
}

void Connection::flush() {
  const bool any = !out_.empty();
  Wires::present().send(fd_, out_);
  has_sent_ = has_sent_ || (any && out_.empty());
}

bool Connection::hand(std::vector<std::byte>, int) {
  return false; // there are no brokers that would
}

int Connection::detach() {
  return -1; // the same
}

void Connection::close() {
  if (fd_ < 0)
    return;
  flush();
  if (rests_ != 0)
    world_.service.cancel(std::exchange(rests_, 0));
  Wires::present().shut(std::exchange(fd_, -1));
  on_frame_ = nullptr;
  on_close_ = nullptr;
  standing_ = nullptr;
}

void Connection::fail(const char* why) {
  const auto keep = shared_from_this();
  const auto tell = std::move(on_close_);
  close();
  if (tell)
    tell(why);
}

void Connection::dispatch() {
  const auto keep = shared_from_this();
  while (fd_ >= 0 && rests_ == 0) {
    wire::Frame frame{};
    const auto result = wire::parse(in_, frame);
    if (result == wire::Parse::partial)
      return;
    if (result != wire::Parse::complete) {
      malformed_ = true;
      return fail("malformed message");
    }
    const std::vector<std::byte> copy(in_.begin(), in_.begin() + static_cast<long>(frame.bytes));
    in_.erase(in_.begin(), in_.begin() + static_cast<long>(frame.bytes));
    wire::parse(copy, frame);
    Wires::present().told(Wires::present().end(fd_), frame);
    int fd = -1;
    if (const auto handler = on_frame_)
      handler(frame, fd);
  }
}

// One host has all.
std::optional<sockaddr_in6> peer_address(const policy::LinkSettings&, const LocalQp&) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  return address;
}

std::string to_text(const sockaddr_in6&) {
  return "the host";
}

std::optional<uid_t> user_here(int) {
  return std::nullopt;
}

bool may_vouch(const policy::LinkSettings& settings) {
  return settings.key.empty();
}

bool is_vouched_for(const policy::LinkSettings& settings, int) {
  return may_vouch(settings) && Wires::present().vouches();
}

bool is_own(const in6_addr&) {
  return true;
}

int remote_address(int fd, in6_addr& address) {
  address = {};
  return Wires::present().end(fd).stands ? 0 : ENOTCONN;
}

Broker::Broker(World& world, uint16_t port, Accept accept, Start start)
    : world_(world), port_(port), accept_(std::move(accept)), start_(std::move(start)),
      server_(world, port, false, accept_) {
  Wires::present().serve(world, accept_);
}

int Broker::join() {
  return 0;
}

void Broker::add(const wire::Id&, uint32_t qpn) {
  Wires::present().own(world_, qpn);
}

void Broker::remove(const wire::Id&, uint32_t qpn) {
  Wires::present().disown(world_, qpn);
}

} // namespace adverb::link

extern "C" {
int new_socket(int, int, int) noexcept asm("__wrap_socket");
int connect_socket(int, const sockaddr*, socklen_t) noexcept asm("__wrap_connect");
uint64_t memlock_left() noexcept asm("__wrap__ZN6adverb6memory12memlock_leftEv");

int new_socket(int, int, int) noexcept {
  return sim::Wires::present().make();
}
int connect_socket(int, const sockaddr*, socklen_t) noexcept {
  errno = EINPROGRESS;
  return -1;
}
uint64_t memlock_left() noexcept {
  return UINT64_MAX;
}
}
