// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The broker against well-behaved and other strangers, over real sockets. Two brokers in one
// process behave as two processes would: one serves, the other is its member.
#include "catch.h"
#include "link/broker.h"
#include "service/thread.h"
#include "skip.h"
#include "world/world.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <filesystem>
#include <future>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <random>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

using namespace adverb;
using namespace std::chrono_literals;
using link::Broker;
using observe::Counter;
namespace wire = link::wire;

namespace {

// What has not come by then never will: a watchdog, and no verdict on speed.
constexpr auto hangs = 120s;

// Of all brokers here, and never destroyed as they are not.
struct Process {
  SteadyClock clock;
  KernelEntropy entropy;
  service::Thread service{world};
  World world{{.clock = clock, .entropy = entropy, .service = service}};
};

World& world() {
  static auto& process = *new Process;
  return process.world;
}

uint64_t value(Counter counter) {
  return world().counters.value(counter);
}

uint16_t free_port() {
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  socklen_t bytes = sizeof any;
  REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&any), bytes) == 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&any), &bytes);
  close(fd);
  return ntohs(any.sin6_port);
}

// Who was given connections.
class Inbox {
public:
  Broker::Accept accept() {
    return [this](int fd, const wire::Hello& hello) {
      const std::lock_guard hold(lock_);
      got_.emplace_back(fd, hello);
      changed_.notify_all();
    };
  }
  bool take(uint32_t qpn, int& fd) {
    std::unique_lock hold(lock_);
    if (!changed_.wait_for(hold, hangs, [&] { return !got_.empty(); }))
      return false;
    fd = got_.back().first;
    const bool right = got_.back().second.dqpn == qpn;
    got_.pop_back();
    return right;
  }

private:
  std::mutex lock_;
  std::condition_variable changed_;
  std::vector<std::pair<int, wire::Hello>> got_;
};

// Brokers live as long as the process, as their users' do.
Broker& make(uint16_t port, Inbox& inbox) {
  auto* broker = new Broker(world(), port, inbox.accept());
  REQUIRE(broker->join() == 0);
  return *broker;
}

Inbox& inbox() {
  return *new Inbox;
}

class Stranger {
public:
  explicit Stranger(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  }
  ~Stranger() { close(fd_); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  void send(std::span<const std::byte> bytes) const {
    ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void finish() const { shutdown(fd_, SHUT_WR); }
  // What comes behind the banner until the other side ends it, at most `most` bytes; nullopt:
  // neither came in time.
  std::optional<std::vector<std::byte>> receive(size_t most = 4096) const {
    constexpr size_t banner = sizeof(wire::Header) + sizeof(wire::Banner);
    auto in = receive_all(banner + most);
    wire::Frame frame{};
    if (in && wire::parse(*in, frame) == wire::Parse::complete && frame.type == wire::Type::banner)
      in->erase(in->begin(), in->begin() + banner);
    return in;
  }
  std::optional<std::vector<std::byte>> receive_all(size_t most) const {
    std::vector<std::byte> in;
    while (in.size() < most) {
      pollfd p{fd_, POLLIN, 0};
      if (poll(&p, 1, std::chrono::milliseconds(hangs).count()) != 1)
        return std::nullopt;
      std::byte buffer[4096];
      const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
      if (n <= 0)
        break;
      in.insert(in.end(), buffer, buffer + n);
    }
    return in;
  }
  bool closed() const {
    const auto in = receive();
    return in && in->empty();
  }

private:
  int fd_;
};

wire::Hello hello_for(uint32_t qpn, const wire::Id& dgid = {}) {
  wire::Hello hello{};
  hello.dqpn = qpn;
  hello.dgid = dgid;
  return hello;
}

void allow_many_descriptors() {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
  setrlimit(RLIMIT_NOFILE, &files);
}

size_t open_descriptors() {
  size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++n;
  return n;
}

// A connection between the stranger and whoever was given `fd`.
bool connected(const Stranger& stranger, int fd) {
  const std::byte word[] = {std::byte{42}};
  const bool sent = write(fd, word, 1) == 1;
  const auto got = stranger.receive(1);
  close(fd);
  return sent && got && *got == std::vector(word, word + 1);
}

// Of a World of its own, whose counters nobody else changes.
World& serve_all_users(uint16_t port) {
  auto& process = *new Process;
  auto& none = inbox();
  const int members = link::listen_for_members(link::members_name(port, true, 0));
  const int peers = link::listen_for_peers(port);
  REQUIRE((members >= 0 && peers >= 0));
  (*new link::BrokerServer(process.world, port, true, none.accept())).serve(members, peers);
  return process.world;
}

// The members' end of a broker, without a Broker.
class Member {
public:
  explicit Member(const std::string& name) : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    const socklen_t bytes = link::members_address(name, address);
    REQUIRE(connect(fd_, reinterpret_cast<const sockaddr*>(&address), bytes) == 0);
  }
  ~Member() { close(fd_); }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // Nothing, if it has been refused.
  void add(const wire::Id& gid, uint32_t qpn) const {
    const auto frame = wire::frame(wire::Registration{gid, qpn, 0}, wire::Type::add_qp);
    ::send(fd_, frame.data(), frame.size(), MSG_NOSIGNAL);
  }
  // Nothing, if it has been refused.
  void remove(const wire::Id& gid, uint32_t qpn) const {
    const auto frame = wire::frame(wire::Registration{gid, qpn, 0}, wire::Type::remove_qp);
    ::send(fd_, frame.data(), frame.size(), MSG_NOSIGNAL);
  }
  // Whether the broker has closed it, and said that there is no room.
  bool is_refused() const {
    std::vector<std::byte> in(4096);
    size_t got = 0;
    for (ssize_t n; (n = recv(fd_, in.data() + got, in.size() - got, 0)) > 0;)
      got += static_cast<size_t>(n);
    in.resize(got);
    wire::Frame frame{};
    return wire::parse(in, frame) == wire::Parse::complete && frame.type == wire::Type::hello_ack &&
           wire::get<wire::HelloAck>(frame).answer ==
               static_cast<uint32_t>(wire::Answer::no_resources);
  }
  int fd() const { return fd_; }

private:
  int fd_;
};

// Whether a hello for the queue pair is handed to that member: all that it has sent before has been
// read by then.
bool is_handed(uint16_t port, uint32_t qpn, const Member& member) {
  const Stranger stranger(port);
  stranger.send(wire::frame(hello_for(qpn)));
  pollfd handed{member.fd(), POLLIN, 0};
  std::vector<std::byte> in(wire::frame(wire::Hello{}).size());
  wire::Frame frame{};
  // Its descriptor is not taken, so that the kernel closes it.
  return poll(&handed, 1, std::chrono::milliseconds(hangs).count()) == 1 &&
         recv(member.fd(), in.data(), in.size(), MSG_WAITALL) == static_cast<ssize_t>(in.size()) &&
         wire::parse(in, frame) == wire::Parse::complete && frame.type == wire::Type::handed &&
         wire::get<wire::Hello>(frame).dqpn == qpn;
}

// Listens under a name and accepts nobody.
class Squatter {
public:
  explicit Squatter(const std::string& name) : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    const socklen_t bytes = link::members_address(name, address);
    REQUIRE(bind(fd_, reinterpret_cast<const sockaddr*>(&address), bytes) == 0);
    REQUIRE(listen(fd_, 0) == 0);
    for (int& waits : waiting_) { // until there is no room
      waits = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      (void)connect(waits, reinterpret_cast<const sockaddr*>(&address), bytes);
    }
  }
  ~Squatter() { leave(); }
  Squatter(const Squatter&) = delete;
  Squatter& operator=(const Squatter&) = delete;
  void leave() {
    if (fd_ < 0)
      return;
    close(std::exchange(fd_, -1));
    for (const int waits : waiting_)
      close(waits);
  }

private:
  int fd_;
  std::array<int, 4> waiting_{};
};

} // namespace

TEST_CASE("a hello reaches the process that registered its queue pair") {
  const uint16_t port = free_port();
  auto& serving_inbox = inbox();
  auto& member_inbox = inbox();
  Broker& serving = make(port, serving_inbox);
  Broker& member = make(port, member_inbox);
  serving.add({}, 11);
  member.add({}, 22);
  int fd = -1;
  const Stranger first(port);
  first.send(wire::frame(hello_for(11)));
  REQUIRE(serving_inbox.take(11, fd));
  CHECK(connected(first, fd));
  const Stranger second(port);
  second.send(wire::frame(hello_for(22)));
  REQUIRE(member_inbox.take(22, fd));
  CHECK(connected(second, fd));
}

TEST_CASE("frames do not wait for those before them to be acknowledged") {
  const uint16_t port = free_port();
  Inbox& serving = inbox();
  make(port, serving).add({}, 8);
  Stranger stranger(port);
  stranger.send(wire::frame(hello_for(8)));
  int fd = -1;
  REQUIRE(serving.take(8, fd));
  const auto connection = link::Connection::make(world(), fd);
  int on = 0;
  socklen_t bytes = sizeof on;
  REQUIRE(getsockopt(connection->fd(), IPPROTO_TCP, TCP_NODELAY, &on, &bytes) == 0);
  CHECK(on == 1);
  std::promise<void> ended; // which is the service thread's to do
  world().service.run([&] {
    connection->close();
    ended.set_value();
  });
  ended.get_future().wait();
}

TEST_CASE("a queue pair can be found from the moment its registration returns") {
  const uint16_t port = free_port();
  auto& serving_inbox = inbox();
  auto& member_inbox = inbox();
  make(port, serving_inbox);
  Broker& member = make(port, member_inbox);
  for (uint32_t qpn = 1; qpn <= 300; ++qpn) {
    const Stranger stranger(port); // the broker may be about to read it before the registration
    member.add({}, qpn);
    stranger.send(wire::frame(hello_for(qpn)));
    int fd = -1;
    REQUIRE(member_inbox.take(qpn, fd));
    close(fd);
    member.remove({}, qpn);
  }
}

TEST_CASE("of queue pairs with one number each is found by one attempt or another") {
  const uint16_t port = free_port();
  const auto sender = [](char which) {
    return [which](int fd, const wire::Hello&) {
      CHECK(write(fd, &which, 1) == 1);
      close(fd);
    };
  };
  auto& serving = *new Broker(world(), port, sender(0));
  auto& member = *new Broker(world(), port, sender(1));
  REQUIRE(serving.join() == 0);
  REQUIRE(member.join() == 0);
  serving.add({}, 7);
  member.add({}, 7);
  std::array<int, 2> found{}; // by the one byte each sends
  for (uint32_t attempt = 1; attempt <= 4; ++attempt) {
    const Stranger stranger(port);
    auto hello = hello_for(7);
    hello.attempt = attempt;
    stranger.send(wire::frame(hello));
    const auto got = stranger.receive(1);
    REQUIRE((got && got->size() == 1));
    ++found[std::to_integer<size_t>(got->front())];
  }
  CHECK(found == std::array{2, 2});
}

TEST_CASE("a queue pair nobody registered, or no longer, is answered so") {
  const uint16_t port = free_port();
  auto& in = inbox();
  Broker& serving = make(port, in);
  serving.add({}, 5);
  serving.remove({}, 5);
  for (const uint32_t qpn : {5U, 6U}) {
    const uint64_t refused = value(Counter::broker_refused);
    const Stranger stranger(port);
    stranger.send(wire::frame(hello_for(qpn)));
    const auto answer = stranger.receive();
    REQUIRE(answer);
    wire::Frame frame{};
    REQUIRE(wire::parse(*answer, frame) == wire::Parse::complete);
    REQUIRE(frame.type == wire::Type::hello_ack);
    CHECK(wire::get<wire::HelloAck>(frame).answer ==
          static_cast<uint32_t>(wire::Answer::no_such_qp));
    CHECK(value(Counter::broker_refused) > refused);
  }
}

TEST_CASE("what is said behind a hello is for who it is handed to, whole") {
  const uint16_t port = free_port();
  auto& serving_inbox = inbox();
  auto& member_inbox = inbox();
  make(port, serving_inbox).add({}, 11);
  make(port, member_inbox).add({}, 22);
  for (const auto& [qpn, taker] : {std::pair{11U, &serving_inbox}, std::pair{22U, &member_inbox}}) {
    auto said = wire::frame(hello_for(qpn));
    std::vector<std::byte> behind(20000);
    for (size_t i = 0; i < behind.size(); ++i)
      behind[i] = static_cast<std::byte>(i * 7);
    said.insert(said.end(), behind.begin(), behind.end());
    const Stranger stranger(port);
    stranger.send(said);
    int fd = -1;
    REQUIRE(taker->take(qpn, fd));
    std::vector<std::byte> heard(behind.size());
    fcntl(fd, F_SETFL, 0); // it waits for all
    CHECK(recv(fd, heard.data(), heard.size(), MSG_WAITALL) == static_cast<ssize_t>(heard.size()));
    CHECK(heard == behind);
    close(fd);
  }
}

TEST_CASE("garbage, truncation, wrong versions and wrong messages are refused and counted") {
  const uint16_t port = free_port();
  auto& in = inbox();
  Broker& serving = make(port, in);
  serving.add({}, 9);
  const auto good = wire::frame(hello_for(9));
  const auto with = [&](size_t at, uint8_t value) {
    auto frame = good;
    frame[at] = std::byte{value};
    return frame;
  };
  std::mt19937 random(3);
  std::vector<std::byte> noise(100000);
  for (auto& b : noise)
    b = static_cast<std::byte>(random());
  const std::string http = "GET / HTTP/1.1\r\n\r\n";
  const auto http_bytes = std::as_bytes(std::span(http));

  std::vector<std::vector<std::byte>> bad = {
      noise,
      {http_bytes.begin(), http_bytes.end()},
      with(0, 'a'),                   // magic
      with(4, 9),                     // version
      with(6, 77),                    // type
      with(8, 1),                     // length
      with(11, 0xFF),                 // an enormous length
      {good.begin(), good.end() - 1}, // truncated, then ended
      {good.begin(), good.begin() + 3},
      wire::frame(wire::Bind{}),                             // not a hello
      wire::frame(wire::Registration{}, wire::Type::add_qp), // members only
  };
  for (int i = 0; i < 100; ++i) { // any header with the right start
    auto frame = good;
    for (size_t at = 4; at < 12; ++at)
      frame[at] = static_cast<std::byte>(random());
    bad.push_back(frame);
  }
  for (const auto& bytes : bad) {
    const auto counted = [] {
      return value(Counter::broker_refused) + value(Counter::malformed_messages);
    };
    const uint64_t before = counted();
    {
      const Stranger stranger(port);
      stranger.send(bytes);
      stranger.finish();
      // Who speaks another version is told which would do, and nobody else anything.
      wire::Frame frame{};
      if (wire::parse(bytes, frame) == wire::Parse::wrong_version) {
        const auto told = stranger.receive();
        REQUIRE((told && wire::parse(*told, frame) == wire::Parse::complete));
        CHECK(frame.bytes == told->size());
        CHECK(wire::get<wire::HelloAck>(frame).answer ==
              static_cast<uint32_t>(wire::Answer::wrong_version));
      } else {
        REQUIRE(stranger.closed());
      }
    }
    const auto start = std::chrono::steady_clock::now();
    while (counted() == before && std::chrono::steady_clock::now() - start < hangs)
      std::this_thread::yield();
    CHECK(counted() > before);
  }
  const Stranger stranger(port); // and it still serves
  stranger.send(good);
  int fd = -1;
  REQUIRE(in.take(9, fd));
  CHECK(connected(stranger, fd));
}

TEST_CASE("a frame longer than a hello is not waited for", "[broker]") {
  const uint16_t port = free_port();
  make(port, inbox()).add({}, 9);
  const uint64_t before = value(Counter::malformed_messages);
  const Stranger stranger(port);
  stranger.send(wire::frame(wire::HelloAck{})); // more of it than is read
  REQUIRE(stranger.closed());
  CHECK(value(Counter::malformed_messages) == before + 1);
}

// What the service thread had begun is done: a connection is seen to end before it is counted.
void settle() {
  std::promise<void> done;
  world().service.run([&] { done.set_value(); });
  done.get_future().wait();
}

TEST_CASE("a thousand silent connections at once are refused or ended, and nothing of them stays") {
  allow_many_descriptors();
  const uint16_t port = free_port();
  auto& in = inbox();
  Broker& serving = make(port, in);
  serving.add({}, 3);
  settle(); // of tests before this one
  const size_t before = open_descriptors();
  const uint64_t served = value(Counter::broker_served);
  const uint64_t refused = value(Counter::broker_refused);
  {
    std::vector<std::unique_ptr<Stranger>> crowd;
    for (int i = 0; i < 1000; ++i)
      crowd.push_back(std::make_unique<Stranger>(port));
    for (const auto& one : crowd)
      CHECK(one->closed()); // none says hello, so each is ended
  }
  settle();
  CHECK(value(Counter::broker_served) - served == 1000);
  CHECK(value(Counter::broker_refused) - refused == 1000);
  CHECK(open_descriptors() == before);
  const Stranger stranger(port);
  stranger.send(wire::frame(hello_for(3)));
  int fd = -1;
  REQUIRE(in.take(3, fd));
  CHECK(connected(stranger, fd));
}

TEST_CASE("a thousand hellos at once are all answered, and among hundreds that say nothing") {
  const bool among_silent = GENERATE(false, true);
  allow_many_descriptors();
  const uint16_t port = free_port();
  auto& in = inbox();
  Broker& serving = make(port, in);
  serving.add({}, 3);
  std::vector<std::unique_ptr<Stranger>> silent;
  for (int i = 0; among_silent && i < 300; ++i)
    silent.push_back(std::make_unique<Stranger>(port));
  std::vector<std::unique_ptr<Stranger>> crowd;
  for (int i = 0; i < 1000; ++i) {
    crowd.push_back(std::make_unique<Stranger>(port));
    crowd.back()->send(wire::frame(hello_for(4))); // that nobody owns
  }
  for (const auto& one : crowd) {
    const auto answer = one->receive();
    REQUIRE(answer);
    wire::Frame frame{};
    REQUIRE(wire::parse(*answer, frame) == wire::Parse::complete);
    CHECK(frame.type == wire::Type::hello_ack);
  }
}

TEST_CASE("of descriptors that come with a member's frames none stays open") {
  const uint16_t port = free_port();
  auto& in = inbox();
  Broker& serving = make(port, in);
  serving.add({}, 3);
  const int member = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const std::string name = "adverb." + std::to_string(geteuid()) + "." + std::to_string(port);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  REQUIRE(connect(member, reinterpret_cast<const sockaddr*>(&address),
                  static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) == 0);
  const size_t before = open_descriptors();
  for (uint32_t qpn = 100; qpn < 200; ++qpn) {
    auto frame = wire::frame(wire::Registration{{}, qpn, 0}, wire::Type::add_qp);
    iovec io{frame.data(), frame.size()};
    const int two[2] = {member, member};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof two)> control{};
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof two);
    memcpy(CMSG_DATA(c), two, sizeof two);
    ssize_t sent = sendmsg(member, &message, 0);
    if (sent < 0 && errno == EPERM) { // from Linux 6.16 on the kernel lets none through
      message.msg_control = nullptr;
      message.msg_controllen = 0;
      sent = sendmsg(member, &message, 0);
    }
    REQUIRE(sent == static_cast<ssize_t>(frame.size()));
  }
  const Stranger stranger(port); // handed to the member, so its frames have been read
  stranger.send(wire::frame(hello_for(199)));
  pollfd handed{member, POLLIN, 0};
  REQUIRE(poll(&handed, 1, std::chrono::milliseconds(hangs).count()) == 1);
  CHECK(open_descriptors() <= before + 3); // the broker's end of the member, and the stranger's
  close(member);
}

TEST_CASE("a broker without free descriptors waits and goes on when there are some") {
  const uint16_t port = free_port();
  auto& in = inbox();
  Broker& serving = make(port, in);
  serving.add({}, 4);
  const Stranger warm(port);
  warm.send(wire::frame(hello_for(4)));
  int fd = -1;
  REQUIRE(in.take(4, fd));
  close(fd);
  const Stranger stranger(port); // accepted by the kernel, perhaps not yet by the broker
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  rlimit none = files;
  none.rlim_cur = 3;
  setrlimit(RLIMIT_NOFILE, &none);
  stranger.send(wire::frame(hello_for(4)));
  timespec start{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
  std::this_thread::sleep_for(300ms); // a span in which a broker that spins would burn all of it
  timespec end{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
  setrlimit(RLIMIT_NOFILE, &files);
  CHECK((end.tv_sec - start.tv_sec) * 1000 + (end.tv_nsec - start.tv_nsec) / 1000000 < 150);
  REQUIRE(in.take(4, fd));
  CHECK(connected(stranger, fd));
}

TEST_CASE("the broker of all users serves those that come after it") {
  if (geteuid() != 0) {
    adverb::test::skip("needs root to be the broker of all users");
    return;
  }
  const uint16_t port = free_port();
  auto& in = inbox();
  serve_all_users(port);
  Broker& member = make(port, in);
  member.add({}, 8);
  const Stranger stranger(port);
  stranger.send(wire::frame(hello_for(8)));
  int fd = -1;
  REQUIRE(in.take(8, fd));
  CHECK(connected(stranger, fd));
}

// Each would take a second if it waited for whoever holds the names.
TEST_CASE("a queue pair is registered without waiting for who holds the broker's names") {
  const uint16_t port = free_port();
  Squatter all(link::members_name(port, true, 0));
  Squatter own(link::members_name(port, false, geteuid()));
  auto& in = inbox();
  auto& broker = *new Broker(world(), port, in.accept());
  auto adding = std::async(std::launch::async, [&] {
    for (uint32_t qpn = 0; qpn < 1000; ++qpn)
      broker.add({}, qpn);
  });
  REQUIRE(adding.wait_for(hangs) == std::future_status::ready);
  CHECK(broker.join() != 0);
  // And they are found when the names are free again.
  all.leave();
  own.leave();
  const auto end = std::chrono::steady_clock::now() + hangs;
  while (broker.join() != 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(1ms);
  REQUIRE(broker.join() == 0);
  const Stranger stranger(port);
  stranger.send(wire::frame(hello_for(999)));
  int fd = -1;
  REQUIRE(in.take(999, fd));
  CHECK(connected(stranger, fd));
}

// That of all users alone is held: this user's programs serve each other all the same.
TEST_CASE("a program serves its user's others when another user's holds the name of all") {
  const uint16_t port = free_port();
  const Squatter all(link::members_name(port, true, 0));
  auto& in = inbox();
  auto& broker = *new Broker(world(), port, in.accept());
  broker.add({}, 17);
  const auto end = std::chrono::steady_clock::now() + hangs;
  while (broker.join() != 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(1ms);
  const Stranger stranger(port);
  stranger.send(wire::frame(hello_for(17)));
  int fd = -1;
  REQUIRE(in.take(17, fd));
  CHECK(connected(stranger, fd));
}

// More than a socket's buffer holds, to a broker that reads none of it until all are registered.
TEST_CASE("registrations do not wait for a broker that does not read") {
  const uint16_t port = free_port();
  const int listener = link::listen_for_members(link::members_name(port, false, geteuid()));
  REQUIRE(listener >= 0);
  auto& in = inbox();
  auto& broker = *new Broker(world(), port, in.accept());
  constexpr uint32_t many = 20000;
  auto adding = std::async(std::launch::async, [&] {
    for (uint32_t qpn = 0; qpn < many; ++qpn)
      broker.add({}, qpn);
  });
  REQUIRE(adding.wait_for(hangs) == std::future_status::ready);
  pollfd comes{listener, POLLIN, 0};
  REQUIRE(poll(&comes, 1, std::chrono::milliseconds(hangs).count()) == 1);
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  REQUIRE(fd >= 0);
  const size_t one = wire::frame(wire::Registration{}, wire::Type::add_qp).size();
  std::vector<std::byte> got(many * one);
  size_t bytes = 0;
  while (bytes < got.size()) {
    pollfd more{fd, POLLIN, 0};
    REQUIRE(poll(&more, 1, std::chrono::milliseconds(hangs).count()) == 1);
    const ssize_t n = recv(fd, got.data() + bytes, got.size() - bytes, 0);
    REQUIRE(n > 0);
    bytes += static_cast<size_t>(n);
  }
  bool ordered = true; // all of them, each once
  for (uint32_t qpn = 0; qpn < many; ++qpn) {
    wire::Frame frame{};
    ordered = ordered &&
              wire::parse(std::span(got).subspan(qpn * one, one), frame) == wire::Parse::complete &&
              frame.type == wire::Type::add_qp && wire::get<wire::Registration>(frame).qpn == qpn;
  }
  CHECK(ordered);
  close(listener);
  close(fd);
}

// The pauses are 1, 2, 4 ms and so on, so before its ninth try there are 255 ms at least. Without
// pauses it comes nine times within a few milliseconds.
TEST_CASE("a member that is refused comes again after ever longer pauses") {
  const uint16_t port = free_port();
  const int listener = link::listen_for_members(link::members_name(port, false, geteuid()));
  REQUIRE(listener >= 0);
  auto& in = inbox();
  const auto start = std::chrono::steady_clock::now();
  (new Broker(world(), port, in.accept()))->add({}, 3);
  for (int came = 0; came < 9; ++came) {
    pollfd comes{listener, POLLIN, 0};
    REQUIRE(poll(&comes, 1, std::chrono::milliseconds(hangs).count()) == 1);
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    REQUIRE(fd >= 0);
    close(fd);
  }
  CHECK(std::chrono::steady_clock::now() - start >= 255ms);
  close(listener);
}

TEST_CASE("a user's programs fill no more than half of a broker of all users") {
  if (geteuid() != 0) {
    adverb::test::skip("needs root to be the broker of all users");
    return;
  }
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const uint16_t port = free_port();
  World& broker = serve_all_users(port);
  const auto refused = [&] { return broker.counters.value(Counter::broker_refused); };
  const rlimit few{512, files.rlim_max}; // 64 members, of all users
  setrlimit(RLIMIT_NOFILE, &few);
  const std::string name = link::members_name(port, true, 0);
  {
    std::deque<Member> members;
    for (uint32_t n = 0; n < 32; ++n)
      members.emplace_back(name).add({}, 100 + n);
    CHECK(is_handed(port, 131, members.back()));
    CHECK(refused() == 0);
    CHECK(Member(name).is_refused());
    CHECK(refused() == 1);
    members.pop_front();
    bool let_in = false; // as soon as the broker has seen it go
    const auto end = std::chrono::steady_clock::now() + hangs;
    while (!let_in && std::chrono::steady_clock::now() < end) {
      const Member next(name);
      next.add({}, 200);
      let_in = is_handed(port, 200, next);
    }
    CHECK(let_in);
  }
  setrlimit(RLIMIT_NOFILE, &files);
}

TEST_CASE("what a member registers twice is kept once, and of one number so many") {
  if (geteuid() != 0) {
    adverb::test::skip("needs root to be the broker of all users");
    return;
  }
  const uint16_t port = free_port();
  World& broker = serve_all_users(port);
  const auto refused = [&] { return broker.counters.value(Counter::broker_refused); };
  const Member member(link::members_name(port, true, 0));
  const auto gid = [](uint8_t n) {
    wire::Id id{};
    id[0] = n;
    return id;
  };
  for (int n = 0; n < 1000; ++n)
    member.add(gid(1), 5);
  for (uint8_t n = 2; n <= 64; ++n)
    member.add(gid(n), 5);
  CHECK(is_handed(port, 5, member));
  CHECK(refused() == 0);
  member.add(gid(65), 5); // one more than 64
  member.add({}, 6);
  CHECK(is_handed(port, 6, member));
  CHECK(refused() == 1);
  // It is there as long as it has not been taken back as often.
  for (int n = 0; n < 999; ++n)
    member.remove(gid(1), 5);
  member.add(gid(66), 5);
  member.add({}, 7);
  CHECK(is_handed(port, 7, member));
  CHECK(refused() == 2);
  member.remove(gid(1), 5);
  member.add(gid(66), 5);
  member.add({}, 8);
  CHECK(is_handed(port, 8, member));
  CHECK(refused() == 2);
}

TEST_CASE("a user's registrations fill no more than half of a broker of all users") {
  if (geteuid() != 0) {
    adverb::test::skip("needs root to be the broker of all users");
    return;
  }
  const uint16_t port = free_port();
  World& broker = serve_all_users(port);
  const auto refused = [&] { return broker.counters.value(Counter::broker_refused); };
  const std::string name = link::members_name(port, true, 0);
  const Member first(name);
  const Member second(name);
  for (uint32_t n = 0; n < 65536; ++n) { // as many as a member may have
    first.add({}, n);
    second.add({}, 65536 + n);
  }
  CHECK(is_handed(port, 65535, first));
  CHECK(is_handed(port, 131071, second));
  CHECK(refused() == 0);
  const Member third(name);
  third.add({}, 1 << 20); // refused, and this one is asked for in vain
  const Stranger stranger(port);
  stranger.send(wire::frame(hello_for(1 << 20)));
  const auto in = stranger.receive();
  REQUIRE(in);
  wire::Frame frame{};
  REQUIRE(wire::parse(*in, frame) == wire::Parse::complete);
  CHECK(wire::get<wire::HelloAck>(frame).answer == static_cast<uint32_t>(wire::Answer::no_such_qp));
  CHECK(refused() == 2);
  first.remove({}, 0);
  const Member fourth(name);
  fourth.add({}, (1 << 20) + 1);
  CHECK(is_handed(port, (1 << 20) + 1, fourth));
}
