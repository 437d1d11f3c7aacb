// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The driver's handle on one side of a test: an agent in this process, or one in another process
// (perhaps on another host) behind a socket. `side(Command{…})` returns the command's reply.
#pragma once

#include "agent.h"
#include "wire.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace verify {

// The agent's process is gone.
struct PeerGone : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What is being waited for right now, for the watchdog: a literal, or nullptr.
extern std::atomic<const char*> waiting_for;

template <class C, size_t I = 0> constexpr uint32_t command_id() {
  if constexpr (std::is_same_v<C, std::tuple_element_t<I, Commands>>)
    return static_cast<uint32_t>(I);
  else
    return command_id<C, I + 1>();
}

template <class T> size_t size_on_wire(const T& t) {
  if constexpr (requires { t.wire_size(); })
    return t.wire_size();
  else
    return sizeof(T);
}

void write_all(int fd, const void* p, size_t n); // throws PeerGone
void read_all(int fd, void* p, size_t n);        // throws PeerGone

class Side {
public:
  explicit Side(Agent* local) : local_(local) {}
  explicit Side(int fd) : fd_(fd) {} // owns fd
  Side(Side&& o) noexcept : local_(o.local_), fd_(std::exchange(o.fd_, -1)), info(o.info) {}
  Side& operator=(Side&&) = delete;
  ~Side();

  template <class C> typename C::Reply operator()(const C& c) {
    struct Note {
      explicit Note(const char* what) { waiting_for = what; }
      ~Note() { waiting_for = nullptr; }
    } note(__PRETTY_FUNCTION__);
    if (local_)
      return local_->exec(c);
    uint32_t head[2] = {command_id<C>(), static_cast<uint32_t>(size_on_wire(c))};
    write_all(fd_, head, sizeof head);
    write_all(fd_, &c, head[1]);
    return receive<C>();
  }

  // Two halves of a call, to let both sides work at once (remote sides only overlap).
  template <class C> void start(const C& c) {
    uint32_t head[2] = {command_id<C>(), static_cast<uint32_t>(size_on_wire(c))};
    write_all(fd_, head, sizeof head);
    write_all(fd_, &c, head[1]);
  }
  template <class C> typename C::Reply receive() {
    uint32_t size = 0;
    typename C::Reply r;
    read_all(fd_, &size, sizeof size);
    read_all(fd_, &r, size);
    return r;
  }
  bool local() const { return local_ != nullptr; }

  // A new agent process of this host, at the other end of a socket pair.
  static Side spawn();
  static Side connect(const char* ip, int port);

private:
  Agent* local_ = nullptr;
  int fd_ = -1;

public:
  SideInfo info = {};
};

// Accepts drivers on `port` for good, one agent process for each. Returns only on failure.
int serve_port(int port);

} // namespace verify
