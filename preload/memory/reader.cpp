// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/reader.h"

#include <csignal>
#include <new>
#include <pthread.h>
#include <system_error>
#include <utility>

namespace adverb::memory {

namespace {

// All signals, while there is one: a thread inherits the mask.
class Blocked {
public:
  Blocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~Blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;

private:
  sigset_t before_{};
};

} // namespace

int start_reader(std::thread& reader, std::function<void()> run) {
  const Blocked blocked;
  try {
    reader = std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return error.code().value();
  }
  pthread_setname_np(reader.native_handle(), "adverb-monitor");
  return 0;
}

} // namespace adverb::memory
