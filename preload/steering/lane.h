// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A lane carries requests of one queue pair and keeps order by itself: what it took earlier is
// executed earlier. The device's lane is the program's own queue pair. A software way uses the lane
// of messages, or opens one of its own (way.h); what else a lane tells its requests' owners is an
// interface of its own.
//
// RC executes requests in order, whichever way they go. Lanes know nothing of each other, so this
// is where the rule stands, once: a request takes a lane when no other lane has anything in flight
// that it must not pass. order "relaxed" lets a WRITE pass WRITEs.
//
// Not thread-safe: the queue pair's lock guards it.
#pragma once

#include "steering/opcode.h"
#include "steering/request.h"

#include <cstdint>
#include <span>

namespace adverb::steering {

enum class Order : uint8_t { strict, relaxed };

// Who put a request on a lane hears what becomes of it there.
class LaneOwner {
public:
  // The device is through with it: result.wc is the device's, and every request before it on the
  // device's lane has been told of already.
  virtual void landed(Request& r) = 0;
  // The provider did not take it after all: the request is as before.
  virtual void returned(Request& r) = 0;

protected:
  ~LaneOwner() = default;
};

class Lane {
public:
  Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  bool busy() const noexcept { return in_flight_ != 0; }
  bool only_writes() const noexcept { return others_ == 0; }
  bool reads() const noexcept { return reads_ != 0; } // READs and atomics are in flight

  // End of a list: what was put on the lane goes out, by one doorbell where the lane has one.
  virtual void commit() {}
  // `next` waits until the lane has nothing in flight. That is noticed anyway by a lane whose
  // requests are all answered; another sees to it here.
  virtual void want_drained(const Request& next) { (void)next; }
  // Forgets what is in flight of the requests from `from` on: answers to it no longer count. Only
  // a lane that can be cut: nothing takes back what a device was given but the queue pair's error.
  virtual bool can_be_cut() const noexcept = 0;
  virtual void cut(uint64_t from) { (void)from; }

protected:
  ~Lane() = default;

  // Units of a lane's own choosing (requests, parts), by class.
  void took(ibv_wr_opcode opcode) noexcept {
    ++in_flight_;
    others_ += opcode != IBV_WR_RDMA_WRITE ? 1 : 0;
    reads_ += reads_remote(opcode) ? 1 : 0;
  }
  void gave(ibv_wr_opcode opcode, uint32_t units = 1) noexcept {
    assert(in_flight_ >= units && (opcode == IBV_WR_RDMA_WRITE || others_ >= units));
    in_flight_ -= units;
    others_ -= opcode != IBV_WR_RDMA_WRITE ? units : 0;
    reads_ -= reads_remote(opcode) ? units : 0;
  }
  void gave_all() noexcept { in_flight_ = others_ = reads_ = 0; }

private:
  uint32_t in_flight_ = 0;
  uint32_t others_ = 0; // of them, not plain WRITEs
  uint32_t reads_ = 0;  // of them, bring data
};

// Whether `next`, about to take another lane, has to wait for `lane`.
inline bool must_wait(const Request& next, const Lane& lane, Order order) noexcept {
  if (!lane.busy())
    return false;
  return !(order == Order::relaxed && next.wr.opcode == IBV_WR_RDMA_WRITE && lane.only_writes());
}

// Whether `next` has to wait until what the READs and atomics on `lane` bring is there. What has
// begun is past its fence, and has none against parts of its own.
inline bool is_fenced_off(const Request& next, const Lane& lane) noexcept {
  return (next.wr.send_flags & IBV_SEND_FENCE) != 0 && next.stage == Stage::queued && lane.reads();
}

// The program's own queue pair.
class DeviceLane : public Lane {
public:
  bool can_be_cut() const noexcept final { return false; }

  // Room for the elements of the request that is posted next; Ring::sges() of them.
  std::span<ibv_sge> room() const noexcept { return room_; }
  // Adds `r` to the batch that commit() posts, as `wr` with the first `elements` of room().
  virtual void post(Request& r, const ibv_send_wr& wr, uint32_t elements, LaneOwner& owner) = 0;
  // Has the unsignaled `next` report itself to the lane all the same, when it is posted as
  // signaled; false: not now, and it has to wait for a turn more. unreport(): it is not posted
  // after all.
  virtual bool report(const Request& next) = 0;
  virtual void unreport() = 0;
  // A request waits for what READs and atomics in flight bring to staging.
  virtual void want_brought() = 0;
  // A request waits for completions: they are taken even if the program does not.
  virtual void wish() = 0;
  // Requests that take a receive at the peer, of this connection so far.
  virtual uint64_t receives() const noexcept = 0;

protected:
  ~DeviceLane() = default;

  std::span<ibv_sge> room_; // moved on by post() and commit()
};

} // namespace adverb::steering
