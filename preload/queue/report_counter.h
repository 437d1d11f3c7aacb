// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What of a queue pair's requests may be with the device, by counting alone. The poster counts the
// requests that are asked to report; the poller counts their reports. A report tells of its request
// and of all before it, so requests that were not asked to report need no report of their own.
//
// Reports are numbered from 1 on, and their numbers wrap after 2^32. At most 2^31 are awaited.
//
// Threads: on_completion_polled() is for the holder of the poll lock of the send CQ; all else is
// for the holder of the queue pair's lock.
#pragma once

#include "queue/fifo.h"
#include "world/sync.h"

#include <cstdint>
#include <new>

namespace adverb::queue {

class ReportCounter {
public:
  // `start`: the number of a report that has come. Tests begin before the wrap.
  explicit ReportCounter(uint32_t start = 0) noexcept
      : signaled_(start), drained_at_(start), polled_(start) {}
  ReportCounter(const ReportCounter&) = delete;
  ReportCounter& operator=(const ReportCounter&) = delete;

  // A request that was asked to report has succeeded. Before the poller looks at anything else it
  // counts here: whoever closes the way to the device looks at the counts after that.
  void on_completion_polled() noexcept { polled_.fetch_add(1); }

  // The last report that has come: for readers without the queue pair's lock, and for what follows.
  const Atomic<uint32_t>& polled() const noexcept { return polled_; }
  bool is_drained(uint32_t polled) const noexcept { return drained_at_ == polled; }
  uint32_t unreported(uint32_t polled) const noexcept { return signaled_ - polled; }

  // Before a request is posted that is asked to report, while none is with the device that is not;
  // and the last one taken back, which the device has refused.
  void post_signaled() noexcept { drained_at_ = ++signaled_; }
  void unpost_signaled() noexcept { drained_at_ = --signaled_; }
  // After any request was posted.
  void post(bool is_signaled) noexcept {
    signaled_ += is_signaled ? 1 : 0;
    drained_at_ = signaled_ + (is_signaled ? 0 : 1);
    if (!is_signaled) {
      ++unsignaled_.count;
      ++unsignaled_.behind_last;
    } else if (unsignaled_.behind_last != 0) {
      end_run();
    }
  }
  // A request has failed. The device flushes those behind it, and each of them tells so. If some
  // were not asked to report, counts say nothing until reset().
  void on_failed() noexcept {
    free_unsignaled();
    is_uncounted_ = is_uncounted_ || unsignaled_.count != 0;
    if (!is_uncounted_)
      polled_.fetch_add(1);
  }
  // None is with the device.
  void reset() noexcept {
    drain(polled_.load(std::memory_order_relaxed));
    is_uncounted_ = false;
  }
  // If none is with the device, nothing is kept of what was. True: so it is.
  bool reset_if_drained() noexcept {
    const uint32_t polled = polled_.load();
    if (!is_drained(polled))
      return false;
    drain(polled);
    return true;
  }

  uint32_t last_report() const noexcept { return signaled_; }     // of those that were asked for
  uint32_t next_report() const noexcept { return signaled_ + 1; } // to be asked for
  bool has_come(uint32_t report) const noexcept { return left_until(report) <= 0; }
  // Whether a request may be with the device.
  bool is_pending() const noexcept { return is_uncounted_ || left_until(drained_at_) > 0; }
  // Whether one of them is yet to report, and whether the last one is.
  bool awaits_report() const noexcept { return left_until(signaled_) > 0; }
  bool is_last_signaled() const noexcept { return drained_at_ == signaled_; }
  bool has_unsignaled() const noexcept { return unsignaled_.count != 0; }
  bool is_uncounted() const noexcept { return is_uncounted_; }
  // Slots of the send queue that are taken, as far as the program has been told. Behind a failure
  // it is unknown, and 0.
  uint64_t outstanding() noexcept {
    free_unsignaled();
    const int32_t reports = left_until(signaled_);
    return is_uncounted_ ? 0 : static_cast<uint64_t>(reports > 0 ? reports : 0) + unsignaled_.count;
  }

private:
  // Requests that are not asked to report leave with the next one that is.
  struct Run {
    uint32_t report = 0; // its number
    uint64_t count = 0;  // of those before it, from the report before on
  };
  struct Unsignaled {
    uint64_t count = 0;       // all that may be with the device
    uint64_t behind_last = 0; // posted after the last that reports
    Fifo<Run> runs;
  };

  // The difference holds where numbers have wrapped.
  int32_t left_until(uint32_t report) const noexcept {
    return static_cast<int32_t>(report - polled_.load());
  }
  void end_run() noexcept {
    try {
      unsignaled_.runs.push() = {signaled_, unsignaled_.behind_last};
      unsignaled_.behind_last = 0;
    } catch (const std::bad_alloc&) { // a later report frees them
    }
  }
  void free_unsignaled() noexcept {
    auto& runs = unsignaled_.runs;
    for (; !runs.empty() && has_come(runs.front().report); runs.pop())
      unsignaled_.count -= runs.front().count;
  }
  void drain(uint32_t polled) noexcept {
    signaled_ = drained_at_ = polled;
    unsignaled_.count = unsignaled_.behind_last = 0;
    unsignaled_.runs.clear();
  }

  uint32_t signaled_; // the last report that was asked for
  // After this report none is with the device: signaled_, or one more that is not asked for if the
  // last request is not to report.
  uint32_t drained_at_;
  bool is_uncounted_ = false;
  Unsignaled unsignaled_;
  Atomic<uint32_t> polled_;
};

} // namespace adverb::queue
