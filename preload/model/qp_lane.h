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

#include "steering/lane.h"

#include <optional>
#include <utility>
#include <vector>

namespace adverb::model {

// Queue pairs post under wr_ids of adverb's: the request's sequence number, which has number_bit,
// with marker_bit the last one that a marker stands behind; receives carry receive_bit. What has
// none of them is the program's own, of a bare request. (The opcode of a failed completion is
// undefined, so it cannot tell.)
inline constexpr uint64_t number_bit = uint64_t{1} << 61;
inline constexpr uint64_t marker_bit = uint64_t{1} << 62;
inline constexpr uint64_t receive_bit = uint64_t{1} << 63;
constexpr bool is_bare(uint64_t wr_id) noexcept {
  return (wr_id & (number_bit | marker_bit | receive_bit)) == 0;
}

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
    // Somebody waits for completions: see to it that they are taken even if the program does not.
    virtual void request_drain() = 0;

  protected:
    ~Device() = default;
  };

  QpLane(Device& device, steering::Ring& ring);

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
  bool report(const steering::Request& next) override;
  void unreport() override;
  // Nothing will say that what `next` is fenced off from has come, but the device knows by itself.
  bool drains_unheard(const steering::Request& next);
  // Of one that was posted behind `seq` there is still something to come, and that tells of all
  // before it: it would take for done what is posted as `seq` now.
  bool has_later(uint64_t seq) const noexcept {
    return last_.seq > seq && (busy() || marker_ == Marker::out);
  }
  uint64_t receives() const noexcept override { return receives_; }

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

  enum class News : uint8_t {
    none,           // of an incarnation that is gone
    drained,        // a marker came through
    marker_flushed, // the queue pair is in error
    marker_refused, // by the peer, as it would have refused the request that waits for it
    landed,         // a request, and all before it
  };
  // A completion of the provider's. For `landed` its request's result is the completion's.
  News on_completion(const steering::Completion& completion);

  // Bare requests go to the device in the program's own list and under its own numbers, while the
  // ring is empty. While one may be with the device they are one unit in flight: until as many have
  // reported as were asked to and the last one was, or something behind them has.
  struct Bare {
    uint32_t posted = 0;
    uint32_t reports = 0;  // of them, signaled
    uint32_t receives = 0; // of them, take a receive at the peer
    bool last_reports = false;
    bool reads = false; // there are READs
    bool atomics = false;
    bool writes = false;
    bool brings() const noexcept { return reads || atomics; }
  };
  // As ibv_post_send, which looks at `bad` only when it fails; took_bare() follows, with those that
  // were taken.
  int post_bare(ibv_send_wr* list, ibv_send_wr** bad) {
    ibv_send_wr* first = list; // should the provider not say
    const int rc = device_.post_send_to_provider(list, &first);
    if (rc != 0) [[unlikely]]
      *bad = first;
    return rc;
  }
  void took_bare(const Bare& bare) noexcept {
    if (bare_.posted == 0 || (bare.brings() && !bare_.brings()))
      take_bare_unit(bare.brings());
    bare_.posted = 1;
    bare_.reports += bare.reports;
    bare_.last_reports = last_.signaled = bare.last_reports;
    bare_.reads |= bare.reads;
    bare_.atomics |= bare.atomics;
    bare_.writes |= bare.writes;
    receives_ += bare.receives;
  }
  // One has succeeded.
  void bare_landed() noexcept {
    if (bare_.reports != 0 && --bare_.reports == 0 && bare_.last_reports && !bare_uncounted_)
      no_bare_left();
  }
  // One has failed: from here on others report, too.
  void bare_failed() noexcept { bare_uncounted_ = true; }
  // None is with the device any more.
  void no_bare_left() noexcept {
    if (bare_.posted != 0)
      gave(bare_unit());
    forget_bare();
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

  // RESET or destroy: nothing of this connection counts any more.
  void reset();

private:
  // Of the class that must not be passed.
  ibv_wr_opcode bare_unit() const noexcept {
    return bare_.brings() ? IBV_WR_RDMA_READ : IBV_WR_SEND;
  }
  void take_bare_unit(bool brings) noexcept {
    if (bare_.posted != 0)
      gave(bare_unit());
    took(brings ? IBV_WR_RDMA_READ : IBV_WR_SEND);
  }
  void forget_bare() noexcept {
    bare_ = {};
    bare_uncounted_ = false;
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
  struct InFlight {
    bool reads = false;  // a READ
    bool writes = false; // a WRITE, with an immediate or not
    bool heard = false;  // one that brings data will report itself
    bool staged = false; // what an atomic brings comes to staging, and nothing reports it
  };
  InFlight in_flight();
  std::optional<ibv_wr_opcode> marker_for(const steering::Request& next);
  // The elements of the batch's request `at`.
  std::span<ibv_sge> elements_of(size_t at) noexcept {
    return {elements_.data() + at * ring_.sges(), ring_.sges()};
  }

  Device& device_;
  steering::Ring& ring_;
  // The batch: chain and elements, bounded, and large enough for one request.
  std::vector<ibv_send_wr> chain_;
  std::vector<ibv_sge> elements_;
  size_t used_ = 0;
  Last last_;
  Last last_before_batch_;
  // `request`: one of the program's, `reporting_`, stands in for it.
  enum class Marker : uint8_t { none, out, request } marker_ = Marker::none;
  uint64_t reporting_ = 0;
  bool wished_ = false;
  std::optional<Refusal> refusal_;
  uint64_t receives_ = 0;
  Bare bare_; // that may be with the device, of one class; `reports`: to come; `posted`: 1 if any
  bool bare_uncounted_ = false; // reports do not say how many are done
};

} // namespace adverb::model
