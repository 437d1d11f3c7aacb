// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The broker against well-behaved and other strangers, over real sockets. Two brokers in one
// process behave as two processes would: one serves, the other is its member.
#include "catch.h"
#include "link/broker.h"
#include "service/thread.h"
#include "skip.h"
#include "world/world.h"

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
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
    REQUIRE(sendmsg(member, &message, 0) == static_cast<ssize_t>(frame.size()));
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
  auto& none = inbox();
  auto& in = inbox();
  const int members = link::listen_for_members(link::members_name(port, true, 0));
  const int peers = link::listen_for_peers(port);
  REQUIRE((members >= 0 && peers >= 0));
  (*new link::BrokerServer(world(), port, true, none.accept())).serve(members, peers);
  Broker& member = make(port, in);
  member.add({}, 8);
  const Stranger stranger(port);
  stranger.send(wire::frame(hello_for(8)));
  int fd = -1;
  REQUIRE(in.take(8, fd));
  CHECK(connected(stranger, fd));
}
