// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The process's counters, log and page for rooms that are not yet handed a World.
#include "observe/exit.h"
#include "observe/page.h"

#include <pthread.h>

namespace adverb::observe::transition {
namespace {

std::atomic<Log*> used_log{nullptr};
std::atomic<SharedPage*> used_page{nullptr};

// Of a test or a tool, which has no World.
struct Ground {
  SteadyClock clock;
  Log log{*counters.load(), clock};
  SharedPage page{*counters.load(), log};
  Ground() {
    finish_at_exit(page);
    pthread_atfork(nullptr, nullptr, [] {
      log_in_use().in_child();
      page_in_use().in_child();
    });
  }
  static Log& log_in_use() { return transition::log(); }
  static SharedPage& page_in_use() { return transition::page(); }
};

Ground& ground() {
  static auto& one = *new Ground;
  return one;
}

} // namespace

Log& log() noexcept {
  Log* used = used_log.load(std::memory_order_acquire);
  return used != nullptr ? *used : ground().log;
}

SharedPage& page() noexcept {
  SharedPage* used = used_page.load(std::memory_order_acquire);
  return used != nullptr ? *used : ground().page;
}

void use(Counters& c, Log& l, SharedPage& p) noexcept {
  counters.store(&c);
  used_page.store(&p);
  used_log.store(&l, std::memory_order_release);
}

} // namespace adverb::observe::transition
