// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Two or three processes that link over the loopback device, one story per case. The parent never
// touches adverb, so that every child starts as a fresh process would.
#pragma once

#include "link/socket_links.h"
#include "service/thread.h"
#include "stopped_clock.h"
#include "world/world.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace link_test {

using namespace std::chrono_literals;
using namespace adverb;

// What has not come by then never will: a watchdog, and no verdict on speed.
inline constexpr auto hangs = 120s;
inline constexpr int hangs_ms = std::chrono::milliseconds(hangs).count();

[[noreturn]] inline void fail(const char* what, int line) {
  fprintf(stderr, "# line %d: %s\n", line, what);
  _exit(1);
}
#define CHECK_THAT(condition)                                                                      \
  do {                                                                                             \
    if (!(condition))                                                                              \
      link_test::fail(#condition, __LINE__);                                                       \
  } while (false)

// A child process and the line of one-byte words between it and the parent.
class Node {
public:
  using Story = std::function<void(Node&)>;
  Node(const std::string& policy, const Story& story) {
    int pair[2];
    CHECK_THAT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      setenv("ADVERB_POLICY", policy.c_str(), 1);
      fd_ = pair[1];
      close(pair[0]);
      story(*this);
      fflush(nullptr);
      _exit(0);
    }
    fd_ = pair[0];
    close(pair[1]);
  }
  ~Node() {
    if (pid_ > 0)
      kill();
    close(fd_);
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  void say(char word) { CHECK_THAT(send(fd_, &word, 1, MSG_NOSIGNAL) == 1); }
  bool hear(char word) {
    pollfd p{fd_, POLLIN, 0};
    char got = 0;
    return ::poll(&p, 1, hangs_ms) == 1 && recv(fd_, &got, 1, 0) == 1 && got == word;
  }
  void tell(uint32_t number) {
    CHECK_THAT(send(fd_, &number, sizeof number, MSG_NOSIGNAL) == sizeof number);
  }
  uint32_t told() {
    uint32_t number = 0;
    CHECK_THAT(recv(fd_, &number, sizeof number, MSG_WAITALL) == sizeof number);
    return number;
  }
  // For the parent.
  bool ended_well() {
    int status = -1;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }
  int fd() const { return fd_; }

private:
  pid_t pid_ = -1;
  int fd_ = -1;
};

// Answers every message with the same bytes.
class Echo final : public link::ChannelUser {
public:
  explicit Echo(std::shared_ptr<link::Channel> channel) : channel_(std::move(channel)) {}

  void on_message(link::RxBuffer message) override {
    unanswered_.push_back(std::move(message));
    CHECK_THAT(unanswered_.size() <= channel_->credits());
    on_tx_free();
  }
  // The answer before may be with the peer, and its completion still on the way.
  void on_tx_free() override {
    for (; !unanswered_.empty(); unanswered_.pop_front()) {
      std::byte* reply = channel_->acquire();
      if (reply == nullptr)
        return;
      const auto bytes = unanswered_.front().bytes();
      memcpy(reply, bytes.data(), bytes.size());
      channel_->send(reply, bytes.size());
    }
  }
  void on_unbound(uint64_t) override {}
  void on_down() override { unanswered_.clear(); }

private:
  const std::shared_ptr<link::Channel> channel_;
  std::deque<link::RxBuffer> unanswered_;
};

// Sends messages under credits and checks what comes back, over one channel at a time.
struct Asker {
  void on_message(link::Channel& channel, link::RxBuffer message) {
    const std::lock_guard hold(lock);
    CHECK_THAT(message.bytes().size() >= 4);
    uint32_t number = 0;
    memcpy(&number, message.bytes().data(), sizeof number);
    CHECK_THAT(number == received); // in order
    for (size_t i = sizeof number; i < message.bytes().size(); ++i)
      CHECK_THAT(message.bytes()[i] == std::byte(number + i));
    CHECK_THAT(message.bytes().size() == bytes_of(received, channel.message_max()));
    ++received;
    message.release();
    pump(channel);
    changed.notify_all();
  }
  void on_tx_free(link::Channel& channel) {
    const std::lock_guard hold(lock);
    pump(channel);
  }
  void on_path_judged() {
    const std::lock_guard hold(lock);
    ++judgements;
    changed.notify_all();
  }
  void on_down() {
    const std::lock_guard hold(lock);
    ++downs;
    changed.notify_all();
  }

  static size_t bytes_of(uint32_t number, size_t most) {
    return number % 7 == 0 ? most : 4 + number * 37 % (most - 4);
  }
  void pump(link::Channel& channel) {
    while (sent < wanted && sent - received < channel.credits()) {
      std::byte* message = channel.acquire();
      if (message == nullptr)
        return;
      const size_t bytes = bytes_of(sent, channel.message_max());
      memcpy(message, &sent, sizeof sent);
      for (size_t i = sizeof sent; i < bytes; ++i)
        message[i] = std::byte(sent + i);
      ++sent;
      channel.send(message, bytes);
    }
  }
  void exchange(link::Channel& channel, uint32_t messages) {
    std::unique_lock hold(lock);
    wanted += messages;
    pump(channel);
    while (received != wanted) { // slow is not wrong, standing still is
      const uint32_t before = received;
      CHECK_THAT(changed.wait_for(hold, hangs, [&] { return received != before; }));
    }
  }
  void wait_down(int times) {
    std::unique_lock hold(lock);
    CHECK_THAT(changed.wait_for(hold, hangs, [&] { return downs >= times; }));
    CHECK_THAT(downs == times);
  }

  std::mutex lock;
  std::condition_variable changed;
  uint32_t wanted = 0;
  uint32_t sent = 0;
  uint32_t received = 0;
  int downs = 0;
  int judgements = 0;
};

// Gives what comes over one channel to the asker of the process.
class AskerEnd final : public link::ChannelUser {
public:
  AskerEnd(Asker& asker, std::shared_ptr<link::Channel> channel)
      : asker_(asker), channel_(std::move(channel)) {}
  void on_message(link::RxBuffer message) override {
    asker_.on_message(*channel_, std::move(message));
  }
  void on_tx_free() override { asker_.on_tx_free(*channel_); }
  void on_unbound(uint64_t) override {}
  void on_path_judged() override { asker_.on_path_judged(); }
  void on_down() override { asker_.on_down(); }

private:
  Asker& asker_;
  const std::shared_ptr<link::Channel> channel_;
};

inline constexpr uint8_t protocol = 7;

class EchoProtocol final : public link::Protocol {
public:
  EchoProtocol(Asker& asker, uint8_t id, size_t message)
      : asker_(asker), id_(id), bytes_(message) {}
  uint8_t id() const noexcept override { return id_; }
  uint8_t version() const noexcept override { return 3; }
  Size size(uint64_t, uint64_t) const noexcept override { return {bytes_, 16}; }
  std::shared_ptr<link::ChannelUser> open(const std::shared_ptr<link::Channel>& channel) override {
    CHECK_THAT(channel->version() == 3);
    if (channel->role() == link::Channel::Role::server)
      return std::make_shared<Echo>(channel);
    return std::make_shared<AskerEnd>(asker_, channel);
  }

private:
  Asker& asker_;
  const uint8_t id_;
  const size_t bytes_;
};

// The devices there are; where there is one only, it is both.
inline ibv_device* device(int which = 0) {
  static ibv_device** const list = ibv_get_device_list(nullptr);
  CHECK_THAT(list != nullptr && list[0] != nullptr);
  return which != 0 && list[1] != nullptr ? list[1] : list[0];
}

// A queue pair as the model describes one; none has to exist on the device for a link. Its peer is
// on the device it is on itself.
inline link::LocalQp qp(uint32_t qpn, uint64_t handle, uint32_t dest = 0, int which = 0) {
  static ibv_context* const contexts[] = {ibv_open_device(device(0)), ibv_open_device(device(1))};
  ibv_context* const context = contexts[which];
  CHECK_THAT(context != nullptr);
  link::LocalQp q{};
  q.device = device(which);
  q.qpn = qpn;
  q.handle = handle;
  q.type = IBV_QPT_RC;
  if (dest == 0)
    return q;
  q.connected = true;
  q.dest_qpn = dest;
  q.mtu = IBV_MTU_1024;
  q.ah.is_global = 1;
  q.ah.port_num = 1;
  q.ah.grh.hop_limit = 64;
  // A GID that is an IPv4 address: 127.0.0.1, or the host's own where the device is a real one.
  for (int i = 0; i < 16; ++i) {
    ibv_gid gid{};
    if (ibv_query_gid(context, 1, i, &gid) != 0)
      break;
    if (gid.raw[10] == 0xFF && gid.raw[11] == 0xFF && gid.global.subnet_prefix == 0) {
      q.ah.grh.sgid_index = static_cast<uint8_t>(i);
      q.sgid = gid;
    }
  }
  q.ah.grh.dgid = q.sgid;
  return q;
}

// This process's World, made at first use and never destroyed.
struct Process {
  test::StoppableClock clock;
  KernelEntropy entropy;
  service::Thread service{world};
  World world{{.clock = clock, .entropy = entropy, .service = service}};
};
inline Process& process() {
  static auto& made = *new Process;
  return made;
}
inline uint64_t value(observe::Counter counter) {
  return process().world.counters.value(counter);
}

inline link::Links& links() {
  World& world = process().world;
  return world.parts.links.get([&] { return link::make_links(world); });
}

// What adverb does in a fork child: the parent's are left as they are.
inline void forget_links() {
  World& world = process().world;
  world.parts.links.abandon_in_child();
  process().service.in_child();
  world.in_child();
}

// Ends every connection of this process to that port, or from it, as a network does that gives one
// up: both ends are told of an error. How many there were.
inline int cut_connections(uint16_t port) {
  int cut = 0;
  for (int fd = 3; fd < 4096; ++fd) { // adverb's are high
    sockaddr_in6 ours{}, theirs{};
    socklen_t bytes = sizeof ours;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&ours), &bytes) != 0 ||
        ours.sin6_family == AF_UNIX)
      continue;
    bytes = sizeof theirs;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&theirs), &bytes) != 0 ||
        (ntohs(ours.sin6_port) != port && ntohs(theirs.sin6_port) != port))
      continue;
    const sockaddr none{.sa_family = AF_UNSPEC, .sa_data = {}};
    // The service thread may have closed it since.
    if (connect(fd, &none, sizeof none) == 0)
      ++cut;
  }
  return cut;
}

inline link::Bound bind(const link::LocalQp& q, uint8_t to = protocol) {
  std::promise<link::Bound> promise;
  auto bound = promise.get_future();
  links().bind(q, to, [&](link::Bound b) { promise.set_value(std::move(b)); });
  CHECK_THAT(bound.wait_for(hangs) == std::future_status::ready);
  return bound.get();
}

// Each case has a port, files and a log of its own.
class Place {
public:
  Place() {
    CHECK_THAT(mkdtemp(directory_.data()) != nullptr);
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    socklen_t bytes = sizeof any;
    CHECK_THAT(::bind(fd, reinterpret_cast<sockaddr*>(&any), bytes) == 0);
    getsockname(fd, reinterpret_cast<sockaddr*>(&any), &bytes);
    port = ntohs(any.sin6_port);
    close(fd);
  }
  ~Place() {
    for (const auto& file : files_)
      unlink(file.c_str());
    rmdir(directory_.c_str());
  }
  // Whole from the first moment: a node that has been started may read the one before it.
  std::string file(const std::string& name, const std::string& text) {
    const std::string path = directory_ + "/" + name;
    const std::string fresh = path + ".new";
    const int fd = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK_THAT(write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    close(fd);
    CHECK_THAT(rename(fresh.c_str(), path.c_str()) == 0);
    files_.push_back(path);
    return path;
  }
  // Everybody has to prove that a queue pair is its own, over the broker of `at`. `more`: what else
  // link holds.
  std::string proving(uint16_t at, const std::string& more = {}) {
    return file("proving-" + std::to_string(at) + ".json",
                R"({"version": 1, "link": {"proof": "all", "port": )" + std::to_string(at) + more +
                    "}}\n");
  }
  // `key`: the text of the pre-shared key, empty for none. `allow`: what link.allow holds.
  std::string policy(const std::string& key = {}, const std::string& allow = {}) {
    std::string link = "\"port\": " + std::to_string(port);
    if (!allow.empty())
      link += ", \"allow\": [" + allow + "]";
    if (!key.empty())
      link += ", \"key_file\": \"" + file("key-" + key, key) + "\"";
    return file("policy-" + key + ".json", "{\"version\": 1, \"link\": {" + link + "}}\n");
  }
  // Requests go as packets of which adverb makes good what is lost.
  std::string far() {
    return file("far.json", R"({"version": 1, "link": {"port": )" + std::to_string(port) +
                                R"(}, "rules": [{"reliability": "software"}]})" + "\n");
  }
  uint16_t port = 0;

private:
  std::string directory_ = "/tmp/adverb-link-XXXXXX";
  std::vector<std::string> files_;
};

} // namespace link_test
