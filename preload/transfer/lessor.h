// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a peer has leased of this process's memory over one channel, at the owner's end.
//
// A lease is a grant (registration/grants.h) that the peer's process keeps for as long as it uses
// it, for all its queue pairs. It is given back by the peer (`yield`), or called back by a notice
// (told_keys.h), whose acknowledgement says that no request is under way by any that it names. It
// ends with its region, or with the link; then what is under way by it may go on for a while, as
// long as there is one of the queue pairs that it may come by.
//
// One notice is out at a time, so a peer that has not given back what was called back is leased
// nothing more: that could not be called back. One that was late is not for a while.
//
// Peers share what may be leased evenly, those that have any or have just asked. Who has more than
// its share when another has not, and there is no room, loses what is too much; which of its parts
// are hot its peer knows, and asks for again in place of others.
#pragma once

#include "link/channel.h"
#include "registration/grants.h"
#include "registration/recalls.h"
#include "transfer/messages.h"
#include "transfer/told_keys.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>

namespace adverb {
class World;
}

namespace adverb::transfer {

class LeftLeases; // target.h

// The owner's end of one channel. Under the progress lock, but for what Recalls calls.
class Lessor final : public registration::Lessor, public std::enable_shared_from_this<Lessor> {
public:
  static constexpr size_t leases_max = 4096; // of one channel
  // So long what is under way by a lease may take when its link has been lost.
  static constexpr std::chrono::seconds outlived{60};
  static constexpr std::chrono::seconds late_pause{10};
  // So long who has asked, and has nothing yet, counts among those that share.
  static constexpr std::chrono::seconds asks_again{2};

  Lessor(World& world, std::shared_ptr<link::Channel> channel, std::shared_ptr<ToldKeys> told);

  // Whether [address, +length), as requests name them, may be leased now by a lease that keeps so
  // many bytes in place: nothing that is called back is out, and the peer has not these bytes
  // already (`fault`), and its share of the budget is not used up (`full`).
  Status may_give(uint32_t key, uint64_t address, uint64_t length, uint64_t bytes);
  // The number that the peer is to know it by; 0: not now, and it has been taken back.
  uint32_t give(std::shared_ptr<registration::Grant> lease);
  // The same of a view, for whose return nobody waits. Not while recalls().
  uint32_t give_view(std::shared_ptr<registration::Grant> view);
  bool views_known() const noexcept { return channel_->version() >= version_views; }
  // What has been called back is out.
  bool recalls() const noexcept { return recalled_ != 0; }
  void yielded(uint32_t number);
  void returned(std::span<const uint32_t> numbers);
  void sweep(); // keys have ended, and with them what was leased under them
  // The channel is down. What is out ends when nobody has what is returned any more, or when it is
  // too late for what is under way; null: nothing is.
  std::shared_ptr<LeftLeases> close();

  void recall(memory::Stripes where) override;
  void give_up(memory::Stripes where) override;
  void shed() override;
  void views_changed() override;

private:
  struct Lease {
    std::shared_ptr<registration::Grant> grant;
    unsigned stripe = 0; // that it lies in
    bool recalled = false;
    bool counted = true; // as out there
  };
  using Leases = std::unordered_map<uint32_t, Lease>;
  uint32_t new_number() noexcept;
  void end(Leases::iterator at);
  void call_back(std::span<const uint32_t> numbers);
  void join();
  void count_in();
  void count_out() noexcept;
  uint64_t share() const; // bytes

  World& world_;
  const std::shared_ptr<link::Channel> channel_;
  const std::shared_ptr<ToldKeys> told_;
  Leases leases_;
  uint32_t next_ = 0;
  size_t recalled_ = 0; // of the leases
  uint64_t bytes_ = 0;
  std::chrono::nanoseconds late_until_{}; // of the World's clock
  bool joined_ = false;
  bool counts_ = false; // among those that share
};

} // namespace adverb::transfer
