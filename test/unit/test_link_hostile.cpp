// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Links against peers that may link and then talk nonsense. TAP.
#include "link/identity.h"
#include "link/wire.h"
#include "link_cases.h"

#include <algorithm>
#include <array>
#include <deque>
#include <fstream>
#include <optional>
#include <random>
#include <sys/resource.h>
#include <thread>

namespace {

using namespace link_test;
namespace wire = link::wire;
using wire::Answer;

// A stream of frames that are well-formed, or nearly, and make no sense together.
void talk_nonsense(int fd, std::mt19937& random) {
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
    std::array<std::byte, 2 * sizeof(wire::Header) + sizeof(wire::Banner) + sizeof(wire::HelloAck)>
        answer;
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
    if (poll(ready, 2, hangs_ms) < 1)
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

// A peer that speaks as adverb does, and says what it likes.
class Speaker {
public:
  explicit Speaker(const Place& place) : Speaker(place, std::nullopt) {
    wire::Hello hello{};
    hello.dqpn = there;
    say(wire::frame(hello));
    const auto ack = hear<wire::HelloAck>();
    CHECK_THAT(ack.answer == 0);
    ticket = ack.ticket;
  }
  Speaker(const Place& place, std::nullopt_t)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in to = local_address(place.port);
    CHECK_THAT(connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
    CHECK_THAT(hear<wire::Banner>().speaks.newest == wire::version);
  }
  ~Speaker() { close(fd_); }
  Speaker(const Speaker&) = delete;
  Speaker& operator=(const Speaker&) = delete;

  void say(const std::vector<std::byte>& frame) const {
    CHECK_THAT(send(fd_, frame.data(), frame.size(), MSG_NOSIGNAL) ==
               static_cast<ssize_t>(frame.size()));
  }
  template <typename T> T hear() const {
    std::array<std::byte, sizeof(wire::Header) + sizeof(T)> bytes;
    pollfd ready{fd_, POLLIN, 0};
    CHECK_THAT(poll(&ready, 1, hangs_ms) == 1);
    CHECK_THAT(recv(fd_, bytes.data(), bytes.size(), MSG_WAITALL) == ssize_t{bytes.size()});
    wire::Frame frame{};
    CHECK_THAT(wire::parse(bytes, frame) == wire::Parse::complete);
    CHECK_THAT(frame.type == wire::type_of<T>);
    return wire::get<T>(frame);
  }
  // False: there was no room in the sockets for so long.
  bool says_within(const std::vector<std::byte>& frame, std::chrono::milliseconds time) const {
    pollfd ready{fd_, POLLOUT, 0};
    if (poll(&ready, 1, static_cast<int>(time.count())) != 1)
      return false;
    say(frame);
    return true;
  }
  void keep_buffers_small() const {
    const int bytes = 16384;
    setsockopt(fd_, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  }
  // Of the frame that comes next and stays to be heard.
  wire::Type next_type() const {
    wire::Header header{};
    CHECK_THAT(recv(fd_, &header, sizeof header, MSG_WAITALL | MSG_PEEK) == ssize_t{sizeof header});
    return static_cast<wire::Type>(header.type);
  }
  void finish() const { shutdown(fd_, SHUT_WR); }
  wire::Id ticket{};
  bool silent() const {
    pollfd ready{fd_, POLLIN, 0};
    return poll(&ready, 1, 0) == 0;
  }
  bool is_ended() const { // or will be
    char byte;
    pollfd ready{fd_, POLLIN, 0};
    return poll(&ready, 1, hangs_ms) == 1 && recv(fd_, &byte, sizeof byte, 0) == 0;
  }
  bool has_ended() const {
    char byte;
    return recv(fd_, &byte, sizeof byte, MSG_DONTWAIT | MSG_PEEK) == 0;
  }
  static wire::Bind bind_for(uint64_t handle, uint32_t ours, uint32_t theirs) {
    const link::LocalQp q = qp(ours, handle, theirs);
    wire::Bind bind{};
    bind.sgid = link::id_of(q.sgid);
    bind.dgid = link::id_of(q.ah.grh.dgid);
    bind.sqpn = ours;
    bind.dqpn = theirs;
    bind.handle = handle;
    return bind;
  }
  void ask_for(uint64_t handle, uint32_t theirs, wire::Type type = wire::Type::bind,
               uint32_t patience = 0) const {
    wire::Bind bind = bind_for(handle, here, theirs);
    bind.patience = patience;
    say(wire::frame(bind, type));
  }
  Answer companion(uint64_t handle, uint64_t remote) const {
    wire::Companion request{};
    request.handle = handle;
    request.remote_handle = remote;
    request.qpn = 77;
    request.credits = 2;
    request.protocol = protocol;
    request.protocol_version = 3;
    request.message_max = 4096;
    say(wire::frame(request));
    const auto ack = hear<wire::CompanionAck>();
    CHECK_THAT((ack.qpn != 0) == (ack.answer == 0));
    return static_cast<Answer>(ack.answer);
  }

private:
  int fd_;
};

bool a_channel_is_made_only_for_a_queue_pair_that_is_bound() {
  Place place;
  Node owner(place.policy(), [](Node& me) {
    install();
    links().publish(qp(there + 1, 3)); // another one, of somebody else's
    links().connected(qp(there + 1, 3, here + 1));
    own(me);
  });
  if (!owner.hear('r'))
    return false;
  const Speaker liar(place);
  CHECK_THAT(liar.companion(1, 2) == Answer::no_such_qp); // its name is known, say
  liar.ask_for(1, there, wire::Type::probe);
  const auto told = liar.hear<wire::BindAck>();
  CHECK_THAT(told.answer == 0 && told.remote_handle == 2);
  CHECK_THAT(liar.companion(1, 2) == Answer::no_such_qp);
  liar.ask_for(1, there);
  CHECK_THAT(liar.hear<wire::BindAck>().remote_handle == 2);
  CHECK_THAT(liar.companion(3, 2) == Answer::no_such_qp); // in another name
  CHECK_THAT(liar.companion(1, 3) == Answer::no_such_qp);
  CHECK_THAT(liar.companion(1, 2) == Answer::ok);
  const Speaker second(place); // over another link
  CHECK_THAT(second.companion(1, 2) == Answer::no_such_qp);
  liar.say(wire::frame(wire::Unbind{1}));
  CHECK_THAT(liar.companion(1, 2) == Answer::no_such_qp);
  return true;
}

// Anybody may say so as often as he likes.
bool who_has_not_the_key_is_counted_each_time_and_logged_once() {
  constexpr uint32_t many = 5;
  Place place;
  const std::string log = place.file("log", "");
  Node owner(place.policy("0123456789abcdef-log"), [&](Node& me) {
    setenv("ADVERB_LOG_FILE", log.c_str(), 1);
    own(me);
    me.tell(static_cast<uint32_t>(value(observe::Counter::auth_failures)));
  });
  if (!owner.hear('r'))
    return false;
  for (uint32_t i = 0; i < many; ++i) {
    const Speaker stranger(place);
    stranger.say(wire::frame(wire::Auth{}));
    CHECK_THAT(stranger.is_ended());
  }
  owner.say('q');
  CHECK_THAT(owner.told() == many);
  size_t lines = 0;
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);)
    lines += line.find("does not know the key") != std::string::npos ? 1 : 0;
  return lines == 1;
}

bool nobody_else_is_told_that_a_wait_is_over() {
  Place place;
  Node owner(place.policy(), [](Node& me) {
    install();
    links().publish(qp(there, 2));
    me.say('r');
    CHECK_THAT(me.hear('c'));
    links().connected(qp(there, 2, here));
    me.hear('q');
  });
  if (!owner.hear('r'))
    return false;
  const Speaker honest(place);
  const Speaker liar(place);
  honest.ask_for(1, there);
  liar.ask_for(1, there, wire::Type::bind, 100);
  CHECK_THAT(liar.hear<wire::BindAck>().answer == static_cast<uint32_t>(Answer::not_ready));
  liar.ask_for(1, there);
  liar.say(wire::frame(wire::Unbind{1}));
  liar.ask_for(9, there + 1); // answered behind what came before
  CHECK_THAT(liar.hear<wire::BindAck>().handle == 9);
  CHECK_THAT(honest.silent());
  // Twice the same, and the one that is asked later gives up first; the other one has as long as
  // anybody, ten seconds.
  const auto asked = std::chrono::steady_clock::now();
  for (const uint32_t patience : {600'000, 100})
    liar.ask_for(5, there, wire::Type::probe, patience);
  CHECK_THAT(liar.hear<wire::BindAck>().answer == static_cast<uint32_t>(Answer::not_ready));
  owner.say('c');
  CHECK_THAT(honest.hear<wire::BindAck>().answer == 0);
  CHECK_THAT(liar.hear<wire::BindAck>().answer == 0);
  CHECK_THAT(liar.silent());
  // The owner lets a peer go that proves nothing, and says nothing more to it: the first one's time
  // is over, too.
  CHECK_THAT(liar.is_ended());
  std::this_thread::sleep_until(asked + 10500ms);
  return honest.has_ended() || honest.silent();
}

bool a_process_may_have_so_many_queue_pairs_bound_and_others_have_theirs() {
  Place place;
  Node owner(place.policy(), own);
  if (!owner.hear('r'))
    return false;
  const Speaker greedy(place);
  for (uint64_t handle = 1; handle <= 4096; ++handle) {
    greedy.ask_for(handle, there);
    CHECK_THAT(greedy.hear<wire::BindAck>().answer == 0);
  }
  greedy.ask_for(5000, there);
  CHECK_THAT(greedy.hear<wire::BindAck>().answer == static_cast<uint32_t>(Answer::no_resources));
  greedy.ask_for(7, there); // once more
  CHECK_THAT(greedy.hear<wire::BindAck>().answer == 0);
  const Speaker other(place);
  other.ask_for(1, there);
  CHECK_THAT(other.hear<wire::BindAck>().answer == 0);
  greedy.say(wire::frame(wire::Unbind{7}));
  greedy.ask_for(5000, there);
  return greedy.hear<wire::BindAck>().answer == 0;
}

bool a_peer_of_another_version_is_told_which_would_do() {
  Place place;
  Node owner(place.policy(), own);
  if (!owner.hear('r'))
    return false;
  wire::Hello hello{};
  hello.dqpn = there;
  const auto refused = [](const Speaker& speaker) {
    const auto ack = speaker.hear<wire::HelloAck>();
    CHECK_THAT(ack.answer == static_cast<uint32_t>(Answer::wrong_version));
    CHECK_THAT(ack.speaks.oldest == wire::version_oldest && ack.speaks.newest == wire::version);
    return true;
  };
  for (const uint8_t header : {1, 3, 255}) { // that of its header
    const Speaker speaker(place, std::nullopt);
    auto frame = wire::frame(hello);
    frame[4] = std::byte{header};
    speaker.say(frame);
    if (!refused(speaker))
      return false;
  }
  for (const auto& speaks : {wire::Versions{3, 9, 0}, wire::Versions{0, 1, ~0U}, //
                             wire::Versions{2, 1, 0}}) {
    const Speaker speaker(place, std::nullopt);
    hello.speaks = speaks;
    speaker.say(wire::frame(hello));
    if (!refused(speaker))
      return false;
  }
  const Speaker speaker(place, std::nullopt);
  hello.speaks = {1, 9, ~0U};
  speaker.say(wire::frame(hello));
  return speaker.hear<wire::HelloAck>().answer == 0;
}

bool an_owner_of_another_version_is_refused_by_name() {
  Place place;
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in at = local_address(place.port);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      listen(listener, 64) != 0)
    return false;
  Node seeker(place.policy(), [listener](Node&) {
    close(listener);
    install();
    const auto bound = link_test::bind(qp(here, 1, there));
    CHECK_THAT(bound.verdict == Verdict::refused);
    CHECK_THAT(bound.reason.find("version") != bound.reason.npos);
  });
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  wire::HelloAck ack{};
  ack.answer = static_cast<uint32_t>(Answer::wrong_version);
  ack.speaks = {3, 4, 0};
  const auto frame = wire::frame(ack);
  send(fd, frame.data(), frame.size(), MSG_NOSIGNAL);
  const bool good = seeker.ended_well();
  close(fd);
  close(listener);
  return good;
}

bool a_process_may_have_so_many_channels_and_others_have_theirs() {
  Place place;
  Node owner(place.policy(), own);
  if (!owner.hear('r'))
    return false;
  const Speaker greedy(place);
  const Speaker other(place);
  for (const Speaker* speaker : {&greedy, &other}) {
    speaker->ask_for(1, there);
    CHECK_THAT(speaker->hear<wire::BindAck>().answer == 0);
  }
  for (int i = 0; i < 64; ++i)
    CHECK_THAT(greedy.companion(1, 2) == Answer::ok);
  CHECK_THAT(greedy.companion(1, 2) == Answer::no_resources);
  return other.companion(1, 2) == Answer::ok;
}

// More than the device has receives for.
bool companions_that_nobody_opens_make_room_for_others() {
  Place place;
  Node owner(place.proving(place.port), own);
  if (!owner.hear('r'))
    return false;
  std::deque<Speaker> crowd;
  for (uint64_t i = 1; i <= 30; ++i) {
    const Speaker& stranger = crowd.emplace_back(place);
    stranger.ask_for(1, there);
    CHECK_THAT(stranger.hear<wire::BindAck>().answer == 0);
    for (int n = 0; n < 64; ++n) { // or it is told of one before, which had to go
      const Answer answer = stranger.companion(1, 2);
      CHECK_THAT(answer == Answer::ok || answer == Answer::not_ready);
    }
  }
  const Speaker other(place);
  other.ask_for(1, there);
  CHECK_THAT(other.hear<wire::BindAck>().answer == 0);
  CHECK_THAT(other.companion(1, 2) == Answer::ok);
  // Whose had to go is told, and would ask again.
  for (Answer told = Answer::ok; told != Answer::not_ready;) {
    const auto ack = crowd.front().hear<wire::CompanionAck>();
    told = static_cast<Answer>(ack.answer);
    CHECK_THAT(ack.handle == 1);
  }
  return true;
}

// Of those that have shown nothing the one with most gives its oldest up, and has to wait if it
// asks for more itself.
bool who_has_fewer_companions_keeps_them() {
  Place place;
  Node owner(place.proving(place.port), own);
  if (!owner.hear('r'))
    return false;
  const Speaker honest(place);
  const Speaker greedy(place);
  const Speaker third(place);
  const Speaker newcomer(place);
  for (const Speaker* speaker : {&honest, &greedy, &third, &newcomer}) {
    speaker->ask_for(1, there);
    CHECK_THAT(speaker->hear<wire::BindAck>().answer == 0);
  }
  CHECK_THAT(honest.companion(1, 2) == Answer::ok);
  for (int n = 0; n < 63; ++n)
    CHECK_THAT(greedy.companion(1, 2) == Answer::ok);
  for (int n = 0; n < 64; ++n)
    CHECK_THAT(third.companion(1, 2) == Answer::ok);
  for (int n = 0; n < 3; ++n) {
    CHECK_THAT(greedy.companion(1, 2) == Answer::not_ready);
    CHECK_THAT(greedy.silent()); // nothing of its has gone
  }
  CHECK_THAT(newcomer.companion(1, 2) == Answer::ok);
  CHECK_THAT(third.hear<wire::CompanionAck>().answer == static_cast<uint32_t>(Answer::not_ready));
  CHECK_THAT(newcomer.companion(1, 2) == Answer::ok);
  // The honest one has been told nothing.
  honest.ask_for(2, there);
  return honest.next_type() == wire::Type::bind_ack;
}

// What is sent to who takes no answers waits in his own socket.
bool who_takes_no_answers_is_not_read_from() {
  Place place;
  Node owner(place.policy(), own);
  if (!owner.hear('r'))
    return false;
  const Speaker greedy(place);
  greedy.ask_for(1, there);
  CHECK_THAT(greedy.hear<wire::BindAck>().answer == 0);
  // Until the owner has stopped to read and all sockets between are full.
  greedy.keep_buffers_small();
  const auto probe = wire::frame(Speaker::bind_for(7, here, there), wire::Type::probe);
  uint64_t said = 0;
  while (said < 200'000 && greedy.says_within(probe, std::chrono::seconds(2)))
    ++said;
  CHECK_THAT(said > 100 && said < 200'000);
  const Speaker other(place);
  other.ask_for(1, there);
  CHECK_THAT(other.hear<wire::BindAck>().answer == 0);
  // Each is answered when it takes them.
  for (uint64_t n = 0; n < said; ++n)
    greedy.hear<wire::BindAck>();
  return true;
}

// And half of the process's descriptors stay its own.
bool who_has_shown_nothing_makes_room_for_others() {
  Place place;
  constexpr int descriptors = 128;
  Node owner(place.proving(place.port), [](Node& me) {
    const rlimit few{descriptors, descriptors};
    CHECK_THAT(setrlimit(RLIMIT_NOFILE, &few) == 0);
    own(me);
  });
  if (!owner.hear('r'))
    return false;
  std::deque<Speaker> crowd;
  for (int i = 0; i < 2 * descriptors; ++i) {
    crowd.emplace_back(place).ask_for(1, there);
    CHECK_THAT(crowd.back().hear<wire::BindAck>().answer == 0);
  }
  // The last are there, and as many as there is room for.
  crowd.back().ask_for(2, there);
  CHECK_THAT(crowd.back().hear<wire::BindAck>().answer == 0);
  const auto ended = std::ranges::count_if(crowd, [](const Speaker& s) { return s.has_ended(); });
  return ended >= 2 * descriptors - descriptors / 2;
}

Answer resume(const Speaker& speaker, const wire::Id& ticket) {
  speaker.say(wire::frame(wire::Resume{ticket}));
  return static_cast<Answer>(speaker.hear<wire::ResumeAck>().answer);
}

// Of a link over which a queue pair is bound, and whose connection is lost.
wire::Id ticket_of_a_lost_link(const Place& place) {
  const Speaker peer(place);
  peer.ask_for(1, there);
  CHECK_THAT(peer.hear<wire::BindAck>().answer == 0);
  CHECK_THAT(peer.companion(1, 2) == Answer::ok);
  CHECK_THAT(cut_connections(place.port) == 1);
  return peer.ticket;
}

bool nobody_goes_on_with_the_link_of_another() {
  Place place;
  Node owner(place.policy(), [](Node& me) {
    install();
    links().publish(qp(there + 1, 3));
    links().connected(qp(there + 1, 3, here + 1));
    own(me);
  });
  if (!owner.hear('r'))
    return false;
  const Speaker honest(place);
  honest.ask_for(1, there);
  CHECK_THAT(honest.hear<wire::BindAck>().answer == 0);
  wire::Id guess = honest.ticket;
  guess[15] ^= 1;
  {
    const Speaker liar(place);
    CHECK_THAT(liar.ticket != honest.ticket && liar.ticket != wire::Id{});
    CHECK_THAT(resume(liar, guess) == Answer::refused);
    CHECK_THAT(resume(liar, wire::Id{}) == Answer::refused);
    CHECK_THAT(resume(liar, liar.ticket) == Answer::refused);
    CHECK_THAT(liar.companion(1, 2) == Answer::no_such_qp);
    // Who has bound something of its own takes nothing over.
    liar.say(wire::frame(Speaker::bind_for(1, here + 1, there + 1)));
    CHECK_THAT(liar.hear<wire::BindAck>().answer == 0);
    CHECK_THAT(resume(liar, honest.ticket) == Answer::refused);
  }
  CHECK_THAT(honest.companion(1, 2) == Answer::ok);
  // The same peer, over another connection.
  const Speaker again(place);
  CHECK_THAT(resume(again, honest.ticket) == Answer::ok);
  CHECK_THAT(again.companion(1, 2) == Answer::ok);
  return true;
}

bool a_link_goes_on_though_nobody_heard_the_answer() {
  Place place;
  Node owner(place.policy(), own);
  if (!owner.hear('r'))
    return false;
  const wire::Id ticket = ticket_of_a_lost_link(place);
  // Each time it is answered, and so the owner has gone on with it; who asks anew does as if it had
  // not heard.
  for (int unheard = 0; unheard < 3; ++unheard) {
    const Speaker again(place);
    CHECK_THAT(resume(again, ticket) == Answer::ok);
    CHECK_THAT(cut_connections(place.port) == 1);
  }
  return true;
}

bool a_link_that_is_not_gone_on_with_ends() {
  Place place;
  Node owner(place.policy(), own);
  if (!owner.hear('r'))
    return false;
  const wire::Id ticket = ticket_of_a_lost_link(place);
  std::this_thread::sleep_until(std::chrono::steady_clock::now() + 11s); // it stays for ten
  const Speaker again(place);
  return resume(again, ticket) == Answer::refused;
}

constexpr Case cases[] = {
    CASE(a_peer_of_another_version_is_told_which_would_do),
    CASE(an_owner_of_another_version_is_refused_by_name),
    CASE(a_process_may_have_so_many_channels_and_others_have_theirs),
    CASE(companions_that_nobody_opens_make_room_for_others),
    CASE(who_has_fewer_companions_keeps_them),
    CASE(who_takes_no_answers_is_not_read_from),
    CASE(who_has_shown_nothing_makes_room_for_others),
    CASE(a_channel_is_made_only_for_a_queue_pair_that_is_bound),
    CASE(who_has_not_the_key_is_counted_each_time_and_logged_once),
    CASE(nobody_else_is_told_that_a_wait_is_over),
    CASE(a_process_may_have_so_many_queue_pairs_bound_and_others_have_theirs),
    CASE(an_owner_outlives_peers_that_talk_nonsense),
    CASE(a_seeker_outlives_brokers_that_talk_nonsense_and_gives_a_verdict),
    CASE(nobody_goes_on_with_the_link_of_another),
    CASE(a_link_goes_on_though_nobody_heard_the_answer),
    CASE(a_link_that_is_not_gone_on_with_ends),
};

} // namespace

int main(int argc, char** argv) {
  return run(cases, argc, argv);
}
