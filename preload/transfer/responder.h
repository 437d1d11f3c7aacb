// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The owner's end of a link: executes peers' requests on this process's unpinned regions, in the
// order they arrive, after the checks a NIC would make.
//
// Runs under the device's progress lock, on the service thread or a polling thread of the program.
// Whoever takes that lock after making a region or a queue pair unusable knows that nothing lands
// any more: that is the barrier of deregistration, destroy, and a move to ERR or RESET.
#pragma once

#include "link/channel.h"
#include "registration/regions.h"
#include "transfer/messages.h"

#include <deque>
#include <map>
#include <memory>
#include <unordered_map>

namespace adverb::transfer {

enum class Right : uint8_t { write, read, atomic };

// A queue pair of this process as a peer's requests see it.
class Target {
public:
  // Serves now (state at least RTR, not in error) and its access flags allow `right`.
  virtual bool allows(Right right) const = 0;
  virtual const ibv_pd* pd() const = 0;
  virtual registration::Regions& regions() const = 0;
  // Messages that arrived before are where the program expects them: a staged one is copied when
  // its completion is taken, and what follows it may read or overwrite the same bytes. False: the
  // program is polling right now, ask again.
  virtual bool settle_receives() = 0;
  // The n-th receive-consuming message will report `bytes` as its length.
  virtual void expect_immediate(uint64_t n, uint32_t bytes) = 0;

  uint32_t halted_run = 0; // see messages.h; 0: not halted
  std::unordered_map<uint64_t, std::shared_ptr<registration::Grant>> grants;

protected:
  ~Target() = default;
};

// All targets of this process by handle. add/remove are thread-safe; remove is followed by the
// caller taking the progress lock as barrier. find() only under a progress lock.
class Targets {
public:
  static Targets& get();
  void add(uint64_t handle, Target* target);
  void remove(uint64_t handle);
  Target* find(uint64_t handle);

private:
  std::mutex lock_;
  std::unordered_map<uint64_t, Target*> targets_;
};

class Responder : public std::enable_shared_from_this<Responder> {
public:
  explicit Responder(link::Channel& channel) : channel_(channel) {}

  void on_message(link::RxBuffer message);
  void on_tx_free();

private:
  void serve_waiting();
  void retry_soon();
  bool serve(const link::RxBuffer& message); // false: no room for the reply yet
  Status execute(const RequestHeader& request, std::span<const std::byte> payload,
                 ReplyHeader& reply, std::byte* reply_payload, size_t room);

  link::Channel& channel_;
  std::deque<link::RxBuffer> waiting_;
  uint64_t next_grant_ = 1;
  bool retrying_ = false;
};

// Tells the link room who handles messages; once per process, before the first link.
void install();

} // namespace adverb::transfer
