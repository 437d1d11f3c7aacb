// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The handlers of exit.
//
// The right moment is after the program's own exit handlers, which may still use verbs. So the
// handlers here are registered by a constructor: the library's come first and therefore run last.
//
// There are several of them because several threads may call exit() at once. Before glibc 2.41 the
// second of them finds the list of handlers empty while the first is still inside one, and ends
// the process under it; with enough handlers each thread has to pass one, which lets it go when
// the file is complete. Registered this early they lie in libc's static block of 32: a handler
// that waits while it lies in a later, allocated block is freed by the other threads meanwhile.
#include "observe/exit.h"

#include <cstdlib>

namespace adverb::observe {

namespace {

// Threads that may call exit() at the same moment and still leave a complete file.
constexpr int kHandlers = 8;

constinit std::atomic<SharedPage*> exiting_page{nullptr};
constinit std::atomic<void (*)() noexcept> exiting_before{nullptr};

void finish() noexcept {
  if (SharedPage* page = exiting_page.load())
    page->finish(exiting_before.load());
}

__attribute__((constructor(101))) void register_handlers() {
  for (int i = 0; i < kHandlers; ++i)
    atexit(finish);
  at_quick_exit(finish);
}

} // namespace

void finish_at_exit(SharedPage& page, void (*before)() noexcept) noexcept {
  exiting_before.store(before);
  exiting_page.store(&page);
}

} // namespace adverb::observe
