// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A channel without a device: what is sent lies in a list, and what arrives is what a test says.
#pragma once

#include "link/channel.h"
#include "transfer/messages.h"

#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace adverb::test {

// The reply that a message has for itself.
inline std::optional<transfer::Parsed<transfer::ReplyHeader>>
only_reply(std::span<const std::byte> message) {
  const auto reply = transfer::next_reply(message);
  return message.empty() ? reply : std::nullopt;
}

struct FakeProgress final : link::Progress {
  bool progress() override { return false; }
};

class FakeChannel final : public link::Channel {
public:
  struct Size {
    uint32_t credits = 4;
    size_t message_max = 512;
    uint8_t version = transfer::version_sharing;
  };
  FakeChannel(link::Progress& progress, Role role, const Size& size) : Channel(progress, role) {
    credits_ = size.credits;
    message_max_ = size.message_max;
    version_ = size.version;
    for (uint32_t i = 0; i <= size.credits; ++i)
      free_.push_back(std::make_unique<std::byte[]>(size.message_max));
  }

  std::byte* acquire() noexcept override {
    const std::lock_guard hold(lock_);
    if (free_.empty() || down_) {
      starved_ = true;
      return nullptr;
    }
    taken_.push_back(std::move(free_.back()));
    free_.pop_back();
    return taken_.back().get();
  }
  void send(std::byte* message, size_t bytes) noexcept override {
    {
      const std::lock_guard hold(lock_);
      if (!down_)
        sent_.emplace_back(message, message + bytes);
    }
    if (!keep_buffers)
      abandon(message);
  }
  void abandon(std::byte* message) noexcept override {
    const std::lock_guard hold(lock_);
    for (auto at = taken_.begin(); at != taken_.end(); ++at)
      if (at->get() == message) {
        free_.push_back(std::move(*at));
        taken_.erase(at);
        return;
      }
  }
  void close() noexcept override { down_ = true; }
  void judge_path() noexcept override { judged = true; }
  bool pays() const noexcept override { return pays_; }

  // The test's side. Each takes the progress lock.
  void open(link::Protocol& protocol) {
    const std::lock_guard hold(progress().lock());
    opened(protocol);
  }
  void end() {
    down_ = true;
    const std::lock_guard hold(progress().lock());
    ended();
  }
  // What is measured of the path.
  void judge(bool pays) {
    pays_ = pays;
    const std::lock_guard hold(progress().lock());
    if (user())
      user()->on_path_judged();
  }
  void receive(std::span<const std::byte> bytes) {
    const std::lock_guard hold(progress().lock());
    if (user())
      user()->on_message({received_, received_.add(bytes), received_.last()});
  }
  // All sends are complete: their buffers are free again.
  void complete() {
    {
      const std::lock_guard hold(lock_);
      while (!taken_.empty()) {
        free_.push_back(std::move(taken_.back()));
        taken_.pop_back();
      }
      if (!std::exchange(starved_, false))
        return;
    }
    const std::lock_guard hold(progress().lock());
    if (user())
      user()->on_tx_free();
  }
  // The oldest message sent and not taken yet; empty: none.
  std::vector<std::byte> take() {
    const std::lock_guard hold(lock_);
    if (sent_.empty())
      return {};
    auto message = std::move(sent_.front());
    sent_.pop_front();
    return message;
  }
  size_t sent() const {
    const std::lock_guard hold(lock_);
    return sent_.size();
  }
  size_t buffers_out() const noexcept { return received_.out(); }

  bool keep_buffers = false; // until complete()
  bool judged = false;       // it was asked for

private:
  // Received messages, until they are given back.
  class Received final : public link::RxBuffer::Pool {
  public:
    uint32_t add(std::span<const std::byte> bytes) {
      all_.emplace_back(bytes.begin(), bytes.end());
      ++out_;
      return static_cast<uint32_t>(all_.size() - 1);
    }
    std::span<const std::byte> last() const { return all_.back(); }
    void take_back(uint32_t) noexcept override { --out_; }
    size_t out() const noexcept { return out_; }

  private:
    std::deque<std::vector<std::byte>> all_;
    std::atomic<size_t> out_{0};
  };

  std::atomic<bool> pays_{false};
  mutable std::mutex lock_;
  std::vector<std::unique_ptr<std::byte[]>> free_;
  std::vector<std::unique_ptr<std::byte[]>> taken_;
  std::deque<std::vector<std::byte>> sent_;
  bool starved_ = false;
  Received received_;
};

} // namespace adverb::test
