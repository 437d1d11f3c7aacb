// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// EventQueue's code, and the acknowledgement handshake destroyers wait for.
#pragma once
#include "objects.h"

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace adverb::loopback {

template <typename T> EventQueue<T>::EventQueue(int& shown) : fd_(shown) {
  fd_ = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
}
template <typename T> EventQueue<T>::~EventQueue() {
  close(fd_);
}

template <typename T> void EventQueue<T>::push(const T& entry) {
  {
    std::lock_guard lock(mutex_);
    entries_.push_back(entry);
  }
  const uint64_t one = 1;
  while (write(fd_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

// `mark` sees the entry while it is still certain that its element has not been destroyed.
template <typename T> template <typename Mark> bool EventQueue<T>::pop_marked(T& entry, Mark mark) {
  for (;;) {
    uint64_t one;
    if (read(fd_, &one, sizeof(one)) != sizeof(one))
      return false;
    std::lock_guard lock(mutex_);
    if (entries_.empty())
      continue; // its entry was purged
    entry = entries_.front();
    entries_.pop_front();
    mark(entry);
    return true;
  }
}

template <typename T> template <typename Match> void EventQueue<T>::purge(Match match) {
  std::lock_guard lock(mutex_);
  const auto end = std::remove_if(entries_.begin(), entries_.end(), match);
  auto removed = entries_.end() - end;
  entries_.erase(end, entries_.end());
  // Take back their count; a reader that was faster finds nothing and goes on waiting.
  for (; removed > 0; --removed) {
    pollfd readable = {fd_, POLLIN, 0};
    uint64_t one;
    if (poll(&readable, 1, 0) == 1 && read(fd_, &one, sizeof(one)) < 0)
      break;
  }
}

inline void acknowledge(pthread_mutex_t& mutex, pthread_cond_t& cond, uint32_t& completed,
                        uint32_t count) {
  pthread_mutex_lock(&mutex);
  completed += count;
  pthread_cond_signal(&cond);
  pthread_mutex_unlock(&mutex);
}

inline void await_acknowledged(pthread_mutex_t& mutex, pthread_cond_t& cond,
                               const uint32_t& completed, const std::atomic<uint32_t>& delivered) {
  pthread_mutex_lock(&mutex);
  while (completed != delivered.load())
    pthread_cond_wait(&cond, &mutex);
  pthread_mutex_unlock(&mutex);
}

} // namespace adverb::loopback
