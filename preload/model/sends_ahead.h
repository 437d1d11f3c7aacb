// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Bytes of SENDs that have come ahead of them, over the link (transfer/handle_send.cpp): kept until
// the SEND itself, which the device brings without bytes, takes a receive.
//
// A SEND is known by its number among the messages of its connection that take a receive. Its bytes
// have all come before it is posted, so what is missing when it comes was never sent.
#pragma once

#include "registration/budget.h"
#include "transfer/messages.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <span>
#include <utility>

namespace adverb::model {

// Those of one SEND, charged to a budget while they are here.
class AheadBytes {
public:
  // Room for `length`; false: there is none.
  bool reserve(registration::Budgets& budgets, uint64_t length) {
    release();
    if (length > UINT32_MAX || !budgets.take_ahead(length + overhead))
      return false;
    budgets_ = &budgets;
    length_ = length;
    bytes_.reset(new (std::nothrow) std::byte[length]);
    if (bytes_ == nullptr)
      release();
    return budgets_ != nullptr;
  }
  AheadBytes() = default;
  AheadBytes(AheadBytes&& other) noexcept { *this = std::move(other); }
  AheadBytes& operator=(AheadBytes&& other) noexcept {
    if (this != &other) {
      release();
      budgets_ = std::exchange(other.budgets_, nullptr);
      length_ = std::exchange(other.length_, 0);
      bytes_ = std::move(other.bytes_);
    }
    return *this;
  }
  ~AheadBytes() { release(); }

  explicit operator bool() const noexcept { return budgets_ != nullptr; }
  std::span<std::byte> all() const noexcept { return {bytes_.get(), length_}; }

private:
  static constexpr uint64_t overhead = 256; // of one that has few bytes or none
  void release() noexcept {
    if (registration::Budgets* const of = std::exchange(budgets_, nullptr))
      of->give_ahead(std::exchange(length_, 0) + overhead);
    bytes_.reset();
  }

  registration::Budgets* budgets_ = nullptr;
  uint64_t length_ = 0;
  std::unique_ptr<std::byte[]> bytes_;
};

// Of one queue pair. Not thread-safe.
class SendsAhead {
public:
  // A part of the SEND whose number is `request.receive`, the next one of its bytes or its first.
  // What begins is sent anew, and so is all behind it that was sent before.
  transfer::Status keep(const transfer::RequestHeader& request, std::span<const std::byte> bytes,
                        registration::Budgets& budgets) {
    using transfer::Status;
    if (request.address == 0) {
      while (!sends_.empty() && sends_.back().number >= request.receive)
        sends_.pop_back();
      Send fresh{.number = request.receive};
      if (!fresh.bytes.reserve(budgets, request.total))
        return Status::full;
      sends_.push_back(std::move(fresh));
    }
    if (sends_.empty() || sends_.back().number != request.receive)
      return Status::refused;
    Send& send = sends_.back();
    const auto room = send.bytes.all();
    if (request.address != send.come || request.total != room.size() ||
        bytes.size() > room.size() - send.come)
      return Status::refused;
    if (!bytes.empty())
      memcpy(room.data() + send.come, bytes.data(), bytes.size());
    send.come += bytes.size();
    return Status::ok;
  }

  // The message of that number has come: the bytes that it left behind, if it is a SEND without any
  // of its own. Whatever else was kept up to it is of no use.
  AheadBytes take(uint64_t number, bool without_bytes) {
    while (!sends_.empty() && sends_.front().number < number)
      sends_.pop_front();
    if (sends_.empty() || sends_.front().number != number)
      return {};
    Send send = std::move(sends_.front());
    sends_.pop_front();
    return without_bytes && send.come == send.bytes.all().size() ? std::move(send.bytes)
                                                                 : AheadBytes{};
  }

  void clear() noexcept { sends_.clear(); }
  bool empty() const noexcept { return sends_.empty(); }

private:
  struct Send {
    uint64_t number;
    AheadBytes bytes{};
    uint64_t come = 0;
  };
  std::deque<Send> sends_; // in order of their numbers
};

} // namespace adverb::model
