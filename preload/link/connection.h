// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A stream socket that carries wire frames. Made and started by any thread, all else is the service
// thread's.
#pragma once

#include "link/wire.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace adverb {
class World;
}

namespace adverb::link {

class Connection : public std::enable_shared_from_this<Connection> {
public:
  // Takes the descriptor over; nonblocking.
  static std::shared_ptr<Connection> make(World& world, int fd);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // `on_frame` gets every well-formed frame and, over a Unix socket, the descriptor that came with
  // it (or -1; who takes it sets it to -1, else it is closed). `on_close` comes once, for whatever
  // reason but close(). A malformed frame is counted and ends the connection.
  using OnFrame = std::function<void(const wire::Frame&, int& fd)>;
  void start(OnFrame on_frame, std::function<void(const char* why)> on_close);
  // Called once when the connection stands and something was sent over it: now, perhaps.
  void when_standing(std::function<void()> tell);
  // For who gives the descriptor away at the first frame: what is behind so many bytes stays in the
  // socket.
  void read_no_more_than(size_t bytes) { room_ = bytes; }
  // From a peer that does not take what it is sent nothing more is read until it does; `tell` is
  // called each time. For the side that answers: two that both did this could wait for each other.
  void read_no_faster_than_taken(std::function<void()> tell) { clogs_ = std::move(tell); }
  // Reads and handles what is there now.
  void poll_now();
  // Handles and reads nothing more for so long: who asks too much has to wait.
  void rest(std::chrono::nanoseconds length);

  void send(std::span<const std::byte> frame);
  // Has the descriptor, which is this one's from here on, go along with the frame as soon as the
  // other end has room. False: too many wait for that, or it is no more; the descriptor is closed.
  bool hand(std::vector<std::byte> frame, int fd);
  // Ends it; nothing is called any more. `flush`: what is still queued goes out first if it can.
  void close();
  size_t waiting() const noexcept { return handed_.size(); } // descriptors, to go along
  bool is_open() const noexcept { return fd_ >= 0; }
  int fd() const noexcept { return fd_; }
  bool has_sent() const noexcept { return has_sent_; } // a first byte: the connection stood
  // It has ended, but not because the other end closed it or said nonsense: the network gave it up.
  bool cut() const noexcept { return cut_; }
  bool malformed() const noexcept { return malformed_; } // it has said nonsense
  // Gives the descriptor away. Nothing is lost that was to be read by read_no_more_than().
  int detach();

private:
  // What is read at most before others have their turn.
  struct Turn {
    int reads;
    size_t bytes; // by each
  };
  Connection(World& world, int fd, Turn turn) : world_(world), turn_(turn), fd_(fd) {}
  void ready(uint32_t events);
  void stands();
  bool read_some();
  void flush();
  bool flush_handed();
  bool has_more() const noexcept { return !out_.empty() || !handed_.empty(); }
  bool reads() const noexcept { return rests_ == 0 && !clogged_; }
  void look_if_clogged();
  void listen_again();
  uint32_t awaited() const noexcept;
  void refuse_version(uint16_t theirs);
  bool passing(int error);
  void dispatch();
  void fail(const char* why);

  World& world_;
  const Turn turn_;
  int fd_;
  std::vector<std::byte> in_;
  std::vector<std::byte> out_;
  struct Handed {
    std::vector<std::byte> frame;
    int fd;
  };
  std::deque<Handed> handed_; // that wait for room
  int passed_fd_ = -1;
  bool has_sent_ = false;
  bool cut_ = false;
  bool malformed_ = false;
  uint64_t rests_ = 0;   // the timer, while it does
  bool clogged_ = false; // its peer has not taken so much that nothing is read from it
  std::function<void()> clogs_;
  size_t room_ = SIZE_MAX; // that may still be read
  std::function<void()> standing_;
  OnFrame on_frame_;
  std::function<void(const char*)> on_close_;
};

} // namespace adverb::link
