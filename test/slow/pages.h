// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Pages that take their time: they are away until somebody touches them, and come when told. What a
// page from a slow swap or a far host does to the thread that needs it, at will.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace slow {

using Clock = std::chrono::steady_clock;
// After which what has to come is said to hang.
inline constexpr std::chrono::seconds hangs{60};

inline constexpr size_t page_bytes = 4096;

// Position and value decide every byte.
void fill(std::byte* to, size_t bytes, uint64_t value);
bool matches(const std::byte* at, size_t bytes, uint64_t value);

class SlowPages {
public:
  // `count` pages, `stride` pages from one to the next; the first one at `first`. Nobody has
  // touched them, and all those between them were touched. Ends the process with `skipped` where
  // userfaultfd is not permitted.
  SlowPages(std::byte* first, size_t count);
  ~SlowPages();
  SlowPages(const SlowPages&) = delete;
  SlowPages& operator=(const SlowPages&) = delete;

  // From now on a page comes as it is asked for, and those that were asked for come now.
  void come_when_asked();
  // One, or all, come now, also where nobody has heard yet that they were asked for; any thread.
  void come_now(size_t which);
  void come_now();
  // Called by the thread that brings the pages, before it brings one.
  void before_each(std::function<void()> call);

  // Whether that many pages were asked for in all, before that hangs.
  bool wait_asked(size_t many);
  size_t asked();
  size_t most_at_once();
  bool has_come(size_t which) { return pages_[which].state == State::here; }

  // What a page holds when it comes.
  static uint64_t value(size_t which) { return 0x510000 + which; }

  static constexpr size_t stride = 16;
  static constexpr int skipped = 77;

private:
  enum class State { away, asked, here };
  struct Page {
    std::atomic<State> state{State::away};
  };
  void serve();
  void on_fault(uintptr_t address);

  std::byte* const first_;
  int faults_ = -1; // the userfaultfd
  int wake_ = -1;   // an eventfd, for the thread
  std::mutex lock_;
  std::condition_variable changed_;
  bool held_ = true;
  std::vector<Page> pages_;
  size_t asked_ = 0, here_ = 0, most_at_once_ = 0;
  std::function<void()> before_each_;
  bool stop_ = false;
  std::thread thread_;
};

} // namespace slow
