// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A thread of the program may be cancelled (pthread_cancel(3)) wherever the C library has a
// cancellation point, and is unwound from there, with adverb's locks held. So while adverb reads
// /proc, writes to descriptors or registers memory where stock's verbs would not, one of these
// lives, and the thread goes on; who cancelled it waits that much longer.
//
// Not guarded is the provider's post of what goes bare (model/bare.h), which would cost each such
// post 10 ns: where that is a system call (soft-RoCE's is a write(2)), a thread that is cancelled
// in it ends the process, README.md.
#pragma once

#include <pthread.h>

namespace adverb {

class NoCancel {
public:
  NoCancel() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancel() {
    int unused = 0;
    pthread_setcancelstate(before_, &unused);
  }
  NoCancel(const NoCancel&) = delete;
  NoCancel& operator=(const NoCancel&) = delete;

private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

} // namespace adverb
