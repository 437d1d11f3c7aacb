// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "queue/report_counter.h"

#include "catch.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>

using adverb::queue::ReportCounter;

namespace {

// A device that has requests one by one, of which some report; what a counter should say of them.
class Device {
public:
  void post(bool is_signaled) { posted_.push_back(is_signaled); }
  bool is_empty() const { return posted_.empty(); }
  // Completes all up to the next that reports. False: none does.
  bool report() {
    for (size_t i = 0; i < posted_.size(); ++i)
      if (posted_[i]) {
        posted_.erase(posted_.begin(), posted_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        return true;
      }
    return false;
  }
  void clear() { posted_.clear(); }
  size_t size() const { return posted_.size(); }
  bool awaits_report() const {
    return std::ranges::any_of(posted_, [](bool is_signaled) { return is_signaled; });
  }
  bool is_last_signaled() const { return posted_.back(); }
  bool has_unsignaled() const {
    return std::ranges::any_of(posted_, [](bool is_signaled) { return !is_signaled; });
  }

private:
  std::deque<bool> posted_; // whether it is signaled
};

void check_same(ReportCounter& counter, const Device& device) {
  REQUIRE(counter.outstanding() == device.size()); // frees what reports have told of
  REQUIRE(counter.is_pending() == !device.is_empty());
  REQUIRE(counter.awaits_report() == device.awaits_report());
  REQUIRE(counter.has_unsignaled() == device.has_unsignaled());
  if (!device.is_empty())
    REQUIRE(counter.is_last_signaled() == device.is_last_signaled());
}

} // namespace

TEST_CASE("counts say what a device has, over the wrap of the numbers") {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    ReportCounter counter(UINT32_MAX - 100);
    Device device;
    for (int step = 0; step < 2000; ++step) {
      switch (random() % 4) {
      case 0:
        counter.post(true);
        device.post(true);
        break;
      case 1:
        counter.post(false);
        device.post(false);
        break;
      default:
        if (device.report())
          counter.on_completion_polled();
        if (random() % 8 == 0)
          REQUIRE(counter.reset_if_drained() == device.is_empty());
      }
      check_same(counter, device);
    }
    CHECK(counter.last_report() < 2000); // the numbers have wrapped
  }
}

TEST_CASE("a report has come when it or one behind it has been polled, over the wrap") {
  ReportCounter counter(UINT32_MAX - 1);
  const uint32_t first = counter.next_report();
  for (int i = 0; i < 4; ++i)
    counter.post_signaled();
  CHECK(counter.last_report() == first + 3);
  CHECK(counter.unreported(counter.polled().load()) == 4);
  for (uint32_t polled = 0; polled < 4; ++polled) {
    for (uint32_t n = 0; n < 4; ++n)
      CHECK(counter.has_come(first + n) == (n < polled));
    CHECK(counter.is_pending());
    CHECK_FALSE(counter.is_drained(counter.polled().load()));
    counter.on_completion_polled();
  }
  CHECK(counter.has_come(first + 3));
  CHECK(counter.is_drained(counter.polled().load()));
  CHECK_FALSE(counter.is_pending());
}

TEST_CASE("a request that the device refuses was never counted") {
  ReportCounter counter;
  counter.post_signaled();
  counter.post_signaled();
  counter.unpost_signaled();
  counter.on_completion_polled();
  CHECK_FALSE(counter.is_pending());
  CHECK(counter.outstanding() == 0);
}

TEST_CASE("behind a request that is not to report only what follows tells that it has left") {
  ReportCounter counter;
  counter.post(true);
  counter.post(false);
  counter.on_completion_polled();
  CHECK(counter.is_pending());
  CHECK_FALSE(counter.awaits_report());
  CHECK_FALSE(counter.reset_if_drained());
  CHECK(counter.outstanding() == 1);
  counter.post(true);
  counter.on_completion_polled();
  CHECK_FALSE(counter.is_pending());
  CHECK(counter.reset_if_drained());
  CHECK_FALSE(counter.has_unsignaled());
}

TEST_CASE("a failure is a report where all were asked to report, and ends counting otherwise") {
  ReportCounter counted;
  counted.post(true);
  counted.post(true);
  counted.on_failed();
  CHECK_FALSE(counted.is_uncounted());
  CHECK(counted.outstanding() == 1);
  counted.on_failed();
  CHECK_FALSE(counted.is_pending());

  ReportCounter uncounted;
  uncounted.post(true);
  uncounted.post(false);
  uncounted.post(true);
  uncounted.on_failed();
  CHECK(uncounted.is_uncounted());
  CHECK(uncounted.is_pending());
  CHECK(uncounted.outstanding() == 0);
  uncounted.reset();
  CHECK_FALSE(uncounted.is_uncounted());
  CHECK_FALSE(uncounted.is_pending());
  // Of unsignaled ones before it a failure tells as a report does.
  uncounted.post(false);
  uncounted.post(true);
  uncounted.on_completion_polled();
  uncounted.post(true);
  uncounted.on_failed();
  CHECK_FALSE(uncounted.is_uncounted());
  CHECK_FALSE(uncounted.is_pending());
}
