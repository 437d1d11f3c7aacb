// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A queue pair of this process as peers' requests see it.
#pragma once

#include "registration/regions.h"
#include "transfer/messages.h"
#include "transfer/told_keys.h"
#include "world/sync.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace adverb::transfer {

// What a peer's process has leased over a link that is lost. Each queue pair of this process that
// was bound over it keeps that, as by these it may still be used, and it ends with the last.
class LeftLeases {
public:
  explicit LeftLeases(std::vector<std::shared_ptr<registration::Grant>> all)
      : all_(std::move(all)) {}
  ~LeftLeases() { end(); }
  LeftLeases(const LeftLeases&) = delete;
  LeftLeases& operator=(const LeftLeases&) = delete;

  // Or sooner.
  void end() noexcept {
    over_.store(true);
    for (const auto& grant : all_)
      registration::Regions::revoke(grant);
  }
  bool is_over() const noexcept { return over_.load(); }

private:
  const std::vector<std::shared_ptr<registration::Grant>> all_;
  Atomic<bool> over_{false};
};

enum class Right : uint8_t { none, write, read, atomic };

// What a queue pair was lent from, by the numbers that peers give it back by.
using Grants = std::unordered_map<uint64_t, std::shared_ptr<registration::Grant>>;

// What a queue pair keeps of one of a peer's that is bound to it over a channel (link/channel.h).
struct Binding {
  // As many windows as a queue pair has at a time (grant.cpp), and some whose end is on its way.
  static constexpr size_t grants_max = 16;

  const link::Channel* channel;
  uint32_t halted_run = 0; // see messages.h; 0: not halted
  Grants grants;
  uint64_t next_grant = 1;
};

class Target {
public:
  // Serves now (state at least RTR, not in error) and its access flags allow `right`.
  virtual bool allows(Right right) const = 0;
  // The program takes it to where it serves nobody, and its device is not there yet. Who is refused
  // has the device say so: it must not hear of a queue pair that is well.
  virtual bool leaving() const = 0;
  virtual const ibv_pd* pd() const = 0;
  virtual registration::Regions& regions() const = 0;
  // Messages that arrived before are where the program expects them: a staged one is copied when
  // its completion is taken. Those of this queue pair, whatever the request does: a program may see
  // by its bytes that others have come. And those of every queue pair for its bytes: who has seen a
  // message complete may go on by another. False: the program is polling right now, ask again.
  virtual bool settle_receives(const RequestHeader& request) = 0;
  // The n-th receive-consuming message will report `bytes` as its length.
  virtual void expect_immediate(uint64_t n, uint32_t bytes) = 0;
  // Keeps bytes of a SEND (Kind::send) until it comes: ok; refused: it serves nobody, takes none or
  // they are not of that SEND; full: there is no room for them. The device is to carry that SEND.
  virtual Status take_ahead(const RequestHeader& request, std::span<const std::byte> bytes) = 0;
  // The link is gone over which it has lent these, and nobody will give them back.
  virtual void lent_over_lost_link(Grants grants) = 0;

  // All of these under the progress lock. The channel's is made when it is first asked for, and
  // stays until it is taken away.
  Binding& binding(const link::Channel& channel) {
    const auto at =
        std::ranges::find_if(bindings_, [&](const auto& b) { return b->channel == &channel; });
    return at != bindings_.end()
               ? **at
               : *bindings_.emplace_back(std::make_unique<Binding>(Binding{&channel, 0, {}, 1}));
  }
  // What is lent of the channel's, which is over.
  Grants unbind(const link::Channel& channel) {
    Grants lent;
    std::erase_if(bindings_, [&](const auto& b) {
      if (b->channel == &channel)
        lent = std::move(b->grants);
      return b->channel == &channel;
    });
    return lent;
  }
  void keep(std::shared_ptr<LeftLeases> left) {
    std::erase_if(left_, [](const auto& other) { return other->is_over(); });
    left_.push_back(std::move(left));
  }
  void revoke(const Grants& grants) noexcept {
    for (const auto& [number, grant] : grants)
      regions().revoke(grant);
  }

protected:
  ~Target() = default;
  // What is lent by all, and leased.
  void end_bindings() noexcept {
    for (const auto& b : bindings_)
      revoke(b->grants);
    bindings_.clear();
    left_.clear();
  }

private:
  std::vector<std::unique_ptr<Binding>> bindings_; // few, mostly one
  std::vector<std::shared_ptr<LeftLeases>> left_;
};

// All targets of this process by handle: World::targets(). add/remove are thread-safe; remove is
// followed by the caller taking the progress lock as barrier. find() only under a progress lock.
class Targets {
public:
  void add(uint64_t handle, Target* target);
  void remove(uint64_t handle);
  Target* find(uint64_t handle);
  // Of the keys that peers use them with.
  KeyEnds& key_ends() noexcept { return key_ends_; }

private:
  KeyEnds key_ends_;
  Mutex lock_;
  std::unordered_map<uint64_t, Target*> targets_;
};

} // namespace adverb::transfer
