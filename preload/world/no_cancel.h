// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A thread of the program may be cancelled (pthread_cancel(3)) wherever the C library has a
// cancellation point, and is unwound from there, with adverb's locks held. So while adverb reads
// /proc, writes to descriptors or registers memory where stock's verbs would not, one of these
// lives, and the thread goes on; who cancelled it waits that much longer.
//
// The provider's post of what goes bare (queue/bare.h) is guarded where it is a system call, as
// soft-RoCE's is: elsewhere it would cost each such post 10 ns for nothing.
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
