// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The owner's end of a link: serves peers' requests on this process's unpinned regions after the
// checks a NIC would make, each by its row of the table (handler.h).
//
// Handlers run under the device's progress lock, on the service thread or a polling thread of the
// program. Copies from and to the program's memory, which may take any time to come, are left as
// errands (link/progress.h) to the service's threads. Whoever calls Progress::barrier() after
// making a region or a queue pair unusable knows that nothing lands any more: that is the barrier
// of deregistration, destroy, and a move to ERR or RESET.
//
// A message waits in a slot until its requests are answered, one after the other: one that has to
// wait keeps those behind it, in its message and in later ones of its queue pair. Their replies are
// gathered in the message that goes back when the last one is there.
//
// Nothing is allocated for one, and a peer that asks for far more than it may is cut off: there are
// two slots for each credit, because one is free only some instants after its reply has gone. A few
// copies of a peer are under way at a time, so that it cannot have all threads sleep in its.
#pragma once

#include "link/channel.h"
#include "transfer/handler.h"
#include "transfer/lessor.h"
#include "world/sync.h"

#include <memory>
#include <optional>
#include <vector>

namespace adverb::transfer {

class Responder final : public link::ChannelUser, public std::enable_shared_from_this<Responder> {
public:
  Responder(World& world, std::shared_ptr<link::Channel> channel,
            std::shared_ptr<const Handlers> handlers, Targets& targets);
  ~Responder() override;

  void on_message(link::RxBuffer message) override;
  void on_tx_free() override;
  void on_unbound(uint64_t handle) override;
  void on_down() override;

private:
  friend class ReplyToken;

  //   free -> waiting -> running -> answered -> free      run() has answered when it returns
  //                      running -> later -> answered     another answers; the service thread goes
  //                      on running -> copying -> answered   so does who has copied
  //                                 copying -> waiting    a barrier was first, or it was only
  //                                 brought answered -> waiting   the message's next request
  // Only `answered` is entered without the progress lock.
  enum class State : uint8_t { free, waiting, running, later, copying, answered };

  struct Slot final : link::Errand {
    void run() override;
    Of of() const noexcept override;
    bool stands() noexcept override;
    void put_aside() noexcept override;
    void again() noexcept override;
    void of_responder(Responder& its) noexcept;
    void posted() noexcept; // to the service

    Atomic<State> state{State::free};
    uint64_t arrival = 0; // among the messages of the channel
    std::optional<link::RxBuffer> message;
    std::span<const std::byte> rest; // of the message, behind the request that is served
    uint32_t left = 0;               // requests there
    bool brought = false;            // what this one needs of the program's memory
    std::span<const std::byte> payload;
    RequestHeader header{};
    const HandlerRow* row = nullptr;
    Target* target = nullptr; // while it is run
    std::byte* out = nullptr; // the message that goes back, while it is made
    size_t filled = 0;        // of it, by the replies before
    ReplyHeader reply{};
    Status status = Status::ok;
    Copy copy{};
    const registration::Regions* regions = nullptr; // of the copy
    Responder* responder = nullptr;                 // whose it is
    std::shared_ptr<Responder> copier;              // the same, until it has been copied
  };

  enum class Started : uint8_t { done, next, later, unsettled, no_room };

  const HandlerRow* known(const RequestHeader& header) const noexcept;
  const HandlerRow& row_of(const RequestHeader& header) const;
  Shape shape_of(const RequestHeader& header) const noexcept;
  uint32_t count(std::span<const std::byte> message) const;
  void take_next(Slot& slot);
  bool waits_for_another(size_t place) const;
  void serve_waiting();
  void on_request(link::RxBuffer message);
  void reject(const char* what, size_t bytes);
  Started start(uint32_t index);
  Target* target_of(const RequestHeader& r) const noexcept;
  void note_unbound(const RequestHeader& r);
  std::optional<Status> judge(const HandlerRow& row, const RequestHeader& r, Target* target);
  bool finish(Slot& slot, Target* target);
  void free(Slot& slot);
  void collect();
  void take_note();
  void retry_soon();
  void answer(Slot& slot, Status status, size_t payload) noexcept; // any thread
  void begin_copies();
  void copy(Slot& slot); // a thread that may sleep
  bool make_copy(const Slot& slot) const noexcept;
  void copied(Slot& slot, bool good);

  World& world_;
  const std::shared_ptr<link::Channel> channel_;
  const std::shared_ptr<const Handlers> handlers_;
  Targets& targets_;
  const std::shared_ptr<ToldKeys> told_;
  const std::shared_ptr<Lessor> lessor_;
  Atomic<uint32_t> held_{0}; // messages of the peer's that keep a buffer
  const uint32_t slots_count_;
  const std::unique_ptr<Slot[]> slots_;
  // Of those in use, in the order the requests came.
  std::vector<uint32_t> order_;
  std::vector<uint32_t> free_;
  bool retrying_ = false;
  uint32_t retries_ = 0; // since a queue pair was settled
  uint64_t arrivals_ = 0;
  static constexpr uint32_t copies_max = 8; // with the service, or asleep
  uint32_t copies_ = 0;
  std::vector<uint32_t> to_copy_; // beyond these
  // An acknowledgement that waits for the requests before it, which may name keys that it lets go.
  struct Note {
    uint32_t number;
    uint64_t arrival;
  };
  std::optional<Note> note_;
};

} // namespace adverb::transfer
