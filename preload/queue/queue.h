// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The send queue of a managed queue pair: every work request the program posted, in order, from
// post to completion. It appends, has a way chosen, issues in order under the rule of lane.h,
// replays and flushes what failed, and retires in posting order. Which way does what it does not
// know.
//
// A request's stages are the table in steering/stages.h, the queue's own:
//   mode  open        issues
//         replaying   a replay is with the device: nothing is issued until it has landed
//         failed      the queue pair is in error: what is not done is posted to be flushed
//   gate  open        issues
//         paused      SQD: nothing new is begun, what has begun goes on
//         stopped     RESET or destroy has begun: completions are taken, nothing is issued
//
// Not thread-safe: the queue pair's lock guards it. Nothing here blocks. A way's object is
// allocated when it is first chosen, else nothing on the way of a request that need not wait.
#pragma once

#include "queue/qp_lane.h"
#include "steering/choose.h"
#include "steering/elements.h"
#include "steering/way.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <vector>

namespace adverb::queue {

// The queue pair around the queue, and the fake of a test.
class QueueHost : public RemoteKeys {
public:
  virtual steering::Facts facts(const steering::Request& r) = 0;
  // Of what is known of the request's remote key; changes with it.
  virtual uint32_t epoch(const steering::Request& r) const noexcept = 0;
  virtual void ask_peer() = 0;
  virtual void ask_key(const steering::Request& r) = 0;
  // The way of `r` has been chosen, for the first time or anew.
  virtual void on_way_chosen(const steering::Request& r, size_t row,
                             steering::Reason reason) noexcept = 0;
  // False while a dead peer shall be told from one that lives.
  virtual bool may_replay() const noexcept = 0;
  // A completion of the program's. `announced`: the provider has just delivered it, with its event.
  virtual void complete(const steering::Completion& completion, bool announced) = 0;
  // Moves the provider's queue pair to ERR.
  virtual void enter_error() = 0;
  virtual void later(std::chrono::nanoseconds delay, steering::Way& way) = 0;

protected:
  ~QueueHost() = default;
};

class Queue final : public steering::QueueCallbacks, public steering::LaneOwner {
public:
  struct Parts {
    World& world;
    QueueHost& host;
    steering::Ring& ring;
    steering::Elements& elements;
    QpLane& device;
    PassthroughSends& passthrough;
    // The lanes beside the device's that ways share, and what the ways that use them need. Ways may
    // open others (steering::QueueCallbacks::open_lane()).
    std::vector<steering::Lane*> lanes;
    transfer::MessageLane& messages;
    steering::WayTable ways;
    steering::Order order;
  };
  explicit Queue(Parts parts);
  virtual ~Queue();

  // One more behind all others, for turn() to issue. errno value: as Ring::append, which it is but
  // for what the device has beside the ring.
  int append(const ibv_send_wr& wr) { return room() == 0 ? ENOMEM : ring_.append(wr); }
  // Issues what may be issued, and retires. Requests from `sync` on were appended by the call that
  // the program is in: if the provider refuses one, it and those behind it are taken back, and
  // which and why is returned; of a list that is to be posted as a `whole` all are, or none.
  struct Refused {
    uint64_t seq = 0;
    int why = 0; // errno; 0: nothing was refused
  };
  Refused turn(uint64_t sync = UINT64_MAX, bool whole = false);

  // The short ways, which most posts take (queue_direct.cpp).
  //
  // Whether lists may pass through (PassthroughSends::post()) again, from here on. All else here
  // closes that way.
  bool open_passthrough() noexcept;
  // One that went so has succeeded, and PassthroughSends::on_completion_polled() wanted it told; or
  // it has failed.
  void passthrough_landed() {
    device_.passthrough_landed();
    if (!all_issued() || (passthrough_wished_ && !passthrough_.used_until(passthrough_report_)))
        [[unlikely]]
      turn();
  }
  void passthrough_failed();

  // Posts what stands at the front of `list` and goes to the device as it stands, and moves `list`
  // behind that.
  Refused post_direct(ibv_send_wr*& list);
  // And back: request `seq` has succeeded. True when it has thereby left, with the program's wr_id;
  // false: on_completion() is to be called.
  bool complete_direct(uint64_t seq, uint64_t& wr_id);

  void on_completion(const steering::Completion& completion);
  // What was known of these remote keys holds no more.
  void on_keys_ended(std::span<const uint32_t> keys);
  // What is with the device is to be known to be complete as soon as it is.
  void have_reported() {
    report_below_ = ring_.tail();
    if ((passthrough_wished_ = passthrough_.uses_leases()))
      passthrough_report_ = passthrough_.last_use();
    turn();
  }
  // The same of what is to be brought to its place by whoever takes completions, for the program
  // does not.
  void have_brought() {
    if (elements_.copies_in() && gate_ != Gate::stopped)
      device_.want_brought();
    turn();
  }
  // What was found of the last key that a passthrough request has named.
  void forget_key() {
    close_passthrough();
    passthrough_.forget_key();
  }
  // The link of the software lanes is gone: what they carried is given to the device, whose timers
  // and NAKs tell a dead peer from one that lives. What the device would carry out fails.
  void on_gone();

  // The queue pair went to ERR; and back from SQE to RTS.
  void fail();
  void recover() noexcept {
    close_passthrough();
    mode_ = Mode::open;
    device_.no_passthrough_left();
    error_left_ = false;
    flushed_from_ = UINT64_MAX;
    cause_ = IBV_WC_SUCCESS;
  }
  // RESET or destroy: everything is forgotten without completions.
  void clear();

  // SQD, and while a move to ERR is under way.
  void pause(bool on) noexcept;
  // RESET or destroy begins; resume() when it does not come about.
  void stop() noexcept;
  void resume();

  steering::Order order() const noexcept { return order_; }

  // A request waits for one to complete at the device.
  bool waits_for_device() const noexcept { return device_.wished(); }
  // A request is under way in a software lane.
  bool carrying() noexcept;
  uint64_t unissued() const noexcept { return ring_.tail() - next_; }
  bool all_issued() const noexcept { return unissued() == 0; }

  // steering::QueueCallbacks
  void done(steering::Request& r) override;
  void next(steering::Request& r) override;
  void again(steering::Request& r) override;
  void missed(steering::Request& r) override;
  void replay(steering::Request& r, steering::Fault fault) override;
  void undelivered(steering::Request& r) override {
    undelivered_ = true;
    flushed_from_ = std::min(flushed_from_, r.seq + 1);
  }
  void open_lane(steering::Lane& lane) override { lanes_.push_back(&lane); }
  void later(std::chrono::nanoseconds delay, steering::Way& way) override;

  // steering::LaneOwner, of replays and flushes
  void landed(steering::Request& r) override {
    elements_.release(r);
    if (r.result.wc.status == IBV_WC_SUCCESS) // UC hears of no refusal
      r.result.wc.byte_len = static_cast<uint32_t>(r.length);
  }
  void returned(steering::Request& r) override { elements_.release(r); }

private:
  enum class Mode : uint8_t { open, replaying, failed };
  enum class Gate : uint8_t { open, paused, stopped };
  using Step = steering::Step;

  Step issue(steering::Request& r, int& why);
  Step try_issue(steering::Request& r, int& why);
  Step issue_by_way(steering::Request& r, int& why);
  Step issue_replay(steering::Request& r, int& why);
  Step issue_nothing(steering::Request& r);
  void lost(steering::Request& r);
  bool may_be_repeated(uint64_t first) const;
  bool fails_here(const steering::Request& r) const;
  Step issue_flush(steering::Request& r);
  bool choose_way(steering::Request& r);
  bool lane_is_free(steering::Request& r, steering::Lane& lane);
  struct Posting { // of the call that the program is in
    uint64_t sync;
    bool whole;
  };
  bool take_refusal(Refused& refused, const Posting& posting);
  void refuse(steering::Request& r, int why, Refused& refused, const Posting& posting);
  void spoil(steering::Request& r, const ibv_wc& wc);
  void rewind(uint64_t seq);
  bool oldest_is_done() noexcept {
    return ring_.head() < next_ && ring_.at(ring_.head()).stage == steering::Stage::done;
  }
  void retire(uint64_t announced = UINT64_MAX);
  void tell_idle();
  // So many more may be outstanding. What is accepted here while the device has as many as it takes
  // could not be issued. A queue pair that never waits has no marker, and its provider judges.
  uint64_t room() noexcept {
    const uint64_t outstanding = ring_.tail() - ring_.head() + passthrough_.outstanding();
    return !ring_.connected()               ? UINT64_MAX
           : outstanding < ring_.capacity() ? ring_.capacity() - outstanding
                                            : 0;
  }
  void close_passthrough() noexcept {
    if (passthrough_.open())
      device_.close_passthrough();
  }

  World& world_;
  QueueHost& host_;
  steering::Ring& ring_;
  steering::Elements& elements_;
  QpLane& device_;
  PassthroughSends& passthrough_;
  std::vector<steering::Lane*> lanes_;
  const steering::WayTable table_;
  const steering::Order order_;
  const observe::Counter by_device_; // how many the device's own way carried
  steering::WayContext context_;
  std::vector<std::unique_ptr<steering::Way>> ways_; // by their place in the table

  uint64_t next_;             // to issue
  uint64_t done_below_ = 0;   // none from here on is done
  bool error_left_ = false;   // a completion in error has
  uint64_t report_below_ = 0; // what is with the device of those below is to be reported
  bool passthrough_wished_ =
      false; // and of leases that passthrough ones use, up to this one's report
  uint32_t passthrough_report_ = 0;
  bool undelivered_ = false; // of the completion that is being looked at
  // Behind one that could not be delivered the device went on, which knew nothing of that.
  uint64_t flushed_from_ = UINT64_MAX;
  // Of the device's error, where its own completion was a marker's; the first that is flushed has
  // it.
  ibv_wc_status cause_ = IBV_WC_SUCCESS;
  Mode mode_ = Mode::open;
  Gate gate_ = Gate::open;
  Gate gate_before_stop_ = Gate::open;
};

} // namespace adverb::queue
