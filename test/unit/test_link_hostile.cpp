// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Links against peers that may link and then talk nonsense. TAP.
#include "link/wire.h"
#include "link_cases.h"

#include <array>
#include <random>

namespace {

using namespace link_test;

// A stream of frames that are well-formed, or nearly, and make no sense together.
void talk_nonsense(int fd, std::mt19937& random) {
  namespace wire = link::wire;
  for (int i = 0; i < 20; ++i) {
    std::vector<std::byte> frame;
    switch (random() % 8) {
    case 0:
      frame = wire::frame(wire::Hello{});
      break;
    case 1:
      frame = wire::frame(wire::HelloAck{});
      break;
    case 2:
      frame = wire::frame(wire::Auth{});
      break;
    case 3:
      frame = wire::frame(wire::Bind{});
      break;
    case 4:
      frame = wire::frame(wire::BindAck{});
      break;
    case 5:
      frame = wire::frame(wire::Companion{});
      break;
    case 6:
      frame = wire::frame(wire::CompanionAck{});
      break;
    default:
      frame = wire::frame(wire::Registration{}, static_cast<wire::Type>(32 + random() % 4));
    }
    for (size_t at = random() % 2 == 0 ? sizeof(wire::Header) : 8; at < frame.size(); ++at)
      if (random() % 4 == 0)
        frame[at] = static_cast<std::byte>(random());
    // Handles that exist reach further.
    if (frame.size() == sizeof(wire::Header) + sizeof(wire::Companion) && random() % 2 == 0) {
      const uint64_t handle = 2;
      memcpy(&frame[sizeof(wire::Header) + offsetof(wire::Companion, remote_handle)], &handle,
             sizeof handle);
    }
    if (send(fd, frame.data(), frame.size(), MSG_NOSIGNAL) < 0)
      return;
  }
}

sockaddr_in local_address(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool an_owner_outlives_peers_that_talk_nonsense() {
  Place place;
  Node owner(place.policy(), own);
  if (!owner.hear('r'))
    return false;
  std::mt19937 random(7);
  const sockaddr_in to = local_address(place.port);
  for (int i = 0; i < 200; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
      return false;
    link::wire::Hello hello{};
    hello.dqpn = there;
    const auto frame = link::wire::frame(hello);
    std::array<std::byte, 84> answer;
    if (send(fd, frame.data(), frame.size(), MSG_NOSIGNAL) < 0 ||
        recv(fd, answer.data(), answer.size(), MSG_WAITALL) != ssize_t{answer.size()})
      return false;
    talk_nonsense(fd, random);
    close(fd);
  }
  Node seeker(place.policy(), [](Node&) {
    const auto bound = ask();
    CHECK_THAT(bound.verdict == Verdict::adverb);
    asker->exchange(*bound.channel, 10);
  });
  return seeker.ended_well();
}

bool a_seeker_outlives_brokers_that_talk_nonsense_and_gives_a_verdict() {
  Place place;
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in at = local_address(place.port);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      listen(listener, 64) != 0)
    return false;
  Node seeker(place.policy(), [listener](Node& me) {
    close(listener);
    install();
    for (uint64_t handle = 1; handle <= 100; ++handle) {
      link::LocalQp q = qp(here, handle, there);
      CHECK_THAT(bind(q).verdict != Verdict::adverb);
    }
    me.say('d');
  });
  std::mt19937 random(11);
  for (;;) {
    pollfd ready[] = {{listener, POLLIN, 0}, {seeker.fd(), POLLIN, 0}};
    if (poll(ready, 2, 30000) < 1)
      return false;
    if (ready[1].revents != 0)
      break;
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (random() % 2 == 0) {
      const auto ack = link::wire::frame(link::wire::HelloAck{});
      send(fd, ack.data(), ack.size(), MSG_NOSIGNAL);
    }
    talk_nonsense(fd, random);
    close(fd);
  }
  close(listener);
  return seeker.hear('d') && seeker.ended_well();
}

constexpr Case cases[] = {
    CASE(an_owner_outlives_peers_that_talk_nonsense),
    CASE(a_seeker_outlives_brokers_that_talk_nonsense_and_gives_a_verdict),
};

} // namespace

int main(int argc, char** argv) {
  return run(cases, argc, argv);
}
