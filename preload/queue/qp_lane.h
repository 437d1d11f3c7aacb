// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The device's lane: the program's own queue pair. Collects what the ways put on it and posts it as
// one chain; knows from completions what is done, for RC completes in order and an unsignaled
// request has no other sign.
//
// A **marker** is its one internal request: zero-length and signaled, posted when a request of
// another lane waits for unsignaled ones. It has no wr_id of the program's, is never retired to it,
// and its slot in the queue pair and in the CQ are reserved when they are made. It is a READ or
// WRITE, as one in flight or the one that waits: the peer's queue pair allows that kind, or refuses
// the other one anyway. Where neither is, only atomics are in flight, for which there is no marker.
// So one may report itself in a marker's place; and a fenced message behind them has the device
// keep the fence, which it does for what is not copied: neither its payload then nor what they
// bring.
//
// Not thread-safe: the queue pair's lock guards it.
#pragma once

#include "queue/passthrough.h"
#include "steering/lane.h"

#include <optional>
#include <utility>
#include <vector>

namespace adverb::queue {

class QpLane final : public steering::DeviceLane {
public:
  // The queue pair itself and its send CQ; a test's fake in their place.
  class Device {
  public:
    // As ibv_post_send: errno value and the first that was not taken.
    virtual int post_send_to_provider(ibv_send_wr* list, ibv_send_wr** bad) = 0;
    // A marker's place in the CQ; false: others have them all, this one will be asked again.
    virtual bool take_marker() = 0;
    virtual void marker_landed() = 0;
    // What post_aside() posted is done.
    virtual void aside_landed(bool ok) = 0;
    // A READ is to be executed again.
    virtual void executed_again() = 0;
    // Somebody waits for completions: see to it that they are taken even if the program does not.
    virtual void request_drain() = 0;
    // The same, but the program is given more time to do it.
    virtual void request_drain_in_time() = 0;

  protected:
    ~Device() = default;
  };

  QpLane(Device& device, steering::Ring& ring, PassthroughSends& passthrough);

  void post(steering::Request& r, const ibv_send_wr& wr, uint32_t elements,
            steering::LaneOwner& owner) override;
  // The same for one that begins here and goes as the program has it: commit() before that may
  // change its list.
  void post_direct(const steering::Request& r, const ibv_send_wr& wr);
  void commit() override {
    if (used_ != 0)
      post_batch();
  }
  void want_drained(const steering::Request& next) override;
  // The queue pair is in error, and somebody waits for all that is with the device.
  void want_flushed();
  // The same where the last one reports, and that would say nothing: passthrough requests are not
  // counted.
  void want_flushed_uncounted();
  // Somebody waits for the READs and WRITEs that are with the device.
  void want_reported();
  // Posts a WRITE or READ of adverb's own, for `next`, which waits, in a marker's place: it reports
  // itself, and with it all before it. errno value; EAGAIN: not now, but somebody will ask again.
  int post_aside(const steering::Request& next, ibv_send_wr wr);
  void want_brought() override;
  bool report(const steering::Request& next) override;
  void unreport() override;
  // Nothing will say that what `next` is fenced off from has come, but the device knows by itself.
  bool drains_unheard(const steering::Request& next);
  // Of one that was posted behind `seq` there is still something to come, and that tells of all
  // before it: it would take for done what is posted as `seq` now.
  bool has_later(uint64_t seq) const noexcept {
    return last_.seq > seq && (busy() || marker_ == Marker::out);
  }
  uint64_t receives() const noexcept override { return receives_ + passthrough_.receives(); }

  // The first request that the provider did not take, if any since the last call: it and those
  // behind it are queued again.
  struct Refusal {
    uint64_t seq;
    int why; // errno
  };
  std::optional<Refusal> take_refusal() noexcept { return std::exchange(refusal_, std::nullopt); }
  // The requests from `seq` on are queued again, if no commit() has posted any of them: false
  // otherwise.
  bool take_back(uint64_t seq);
  bool refused() const noexcept { return refusal_.has_value(); }
  // The first of those that were done and have to be issued again since the last call, or
  // UINT64_MAX.
  uint64_t take_restarted() noexcept { return std::exchange(restarted_, UINT64_MAX); }

  enum class News : uint8_t {
    none,           // of an incarnation that is gone
    drained,        // a marker came through
    marker_flushed, // the queue pair is in error
    marker_refused, // by the peer, as it would have refused the request that waits for it
    landed,         // a request, and all before it
  };
  // A completion of the provider's. For `landed` its request's result is the completion's.
  News on_completion(const steering::Completion& completion);

  // Passthrough requests are one unit in flight while they may be with the device and their way is
  // closed.
  //
  // False: not while a marker is out, which must not be taken for one behind them.
  bool open_passthrough() noexcept {
    if (marker_ != Marker::none)
      return false;
    give_passthrough_unit();
    passthrough_.set_open(true);
    return true;
  }
  void close_passthrough() noexcept {
    passthrough_.set_open(false);
    if (passthrough_.traits() != 0)
      last_.signaled = passthrough_.reports().is_last_signaled();
    if (passthrough_.reports().is_pending())
      took(*(passthrough_unit_ = passthrough_unit()));
    else
      passthrough_.forget();
  }
  // One has succeeded that PassthroughSends::on_completion_polled() wanted told.
  void passthrough_landed() noexcept {
    passthrough_.landed();
    if (!passthrough_.open() && !passthrough_.reports().is_pending())
      no_passthrough_left();
  }
  // None is with the device any more.
  void no_passthrough_left() noexcept {
    give_passthrough_unit();
    passthrough_.forget();
  }

  // The same where nothing but its slot is to be seen to: request `seq` has succeeded, and with all
  // before it leaves the ring, the last that does and the only one that reports. False: it is for
  // on_completion().
  bool land_direct(uint64_t seq);

  // A request waits for completions since forget_wish().
  bool wished() const noexcept { return wished_; }
  void wish() override {
    wished_ = true;
    device_.request_drain();
  }
  void forget_wish() noexcept { wished_ = false; }
  // Nobody waits but the program, perhaps, which need not poll.
  void wish_in_time() {
    wished_ = true;
    device_.request_drain_in_time();
  }

  // RESET or destroy: nothing of this connection counts any more.
  void reset();

private:
  // Of the class that must not be passed.
  ibv_wr_opcode passthrough_unit() const noexcept {
    return (passthrough_.traits() & steering::trait_brings) != 0 ? IBV_WR_RDMA_READ : IBV_WR_SEND;
  }
  void give_passthrough_unit() noexcept {
    if (passthrough_unit_)
      gave(*std::exchange(passthrough_unit_, std::nullopt));
  }
  struct Last { // posted
    uint64_t seq = 0;
    bool signaled = false;
  };
  void post_batch();
  void add(uint64_t seq, const ibv_send_wr& wr);
  void refuse_batch(size_t count, const ibv_send_wr* bad, int why);
  void give_back(size_t first, size_t count);
  void land_up_to(uint64_t seq);
  void restart(steering::Request& r);
  struct InFlight {
    bool reads = false;  // a READ
    bool writes = false; // a WRITE, with an immediate or not
    bool heard = false;  // one that brings data will report itself
    bool staged = false; // what an atomic brings comes to staging, and nothing reports it
  };
  InFlight in_flight();
  void post_marker(std::optional<ibv_wr_opcode> opcode);
  bool lacks_marker() const noexcept {
    return busy() && !last_.signaled && marker_ == Marker::none;
  }
  std::optional<ibv_wr_opcode> marker_for(const steering::Request& next);
  // The elements of the batch's request `at`.
  std::span<ibv_sge> elements_of(size_t at) noexcept {
    return {elements_.data() + at * ring_.sges(), ring_.sges()};
  }

  Device& device_;
  steering::Ring& ring_;
  PassthroughSends& passthrough_;
  // The batch: chain and elements, bounded, and large enough for one request.
  std::vector<ibv_send_wr> chain_;
  std::vector<ibv_sge> elements_;
  size_t used_ = 0;
  Last last_;
  Last last_before_batch_;
  // `request`: one of the program's, `reporting_`, stands in for it.
  enum class Marker : uint8_t { none, out, request } marker_ = Marker::none;
  uint64_t reporting_ = 0;
  // What is out is of post_aside(), and was posted behind this one.
  std::optional<uint64_t> aside_after_;
  bool wished_ = false;
  std::optional<Refusal> refusal_;
  uint64_t restarted_ = UINT64_MAX;
  uint64_t receives_ = 0;
  std::optional<ibv_wr_opcode> passthrough_unit_; // that is in flight
};

} // namespace adverb::queue
