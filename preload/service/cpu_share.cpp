// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "service/cpu_share.h"
#include "memory/own_fds.h"
#include "world/no_cancel.h"

#include <array>
#include <charconv>
#include <fcntl.h>
#include <unistd.h>

namespace adverb::service {
namespace {

// Of the time that it wanted a processor it has waited more than a half: short. Less than a third:
// not so any more. Three threads that spin on two processors each wait for a third.
constexpr int short_part = 2;
constexpr int enough_part = 3;
constexpr std::chrono::milliseconds wanted_least{1}; // in a window, or it says nothing
// A window in which somebody slept says less of each moment; of so long a one, nothing.
constexpr std::chrono::milliseconds window_most{200};

} // namespace

void CpuShare::judge(nanoseconds now, const Times& times) noexcept {
  const bool fresh = before_ && now - looked_ <= window_most;
  const nanoseconds ran = fresh ? times.ran - before_->ran : nanoseconds{0};
  const nanoseconds waited = fresh ? times.waited - before_->waited : nanoseconds{0};
  looked_ = now;
  before_ = times;
  if (!fresh || ran + waited < wanted_least)
    short_.store(false);
  else if (waited * short_part > ran + waited)
    short_.store(true);
  else if (waited * enough_part < ran + waited)
    short_.store(false);
}

void CpuShare::measure(nanoseconds now) noexcept {
  asked_.store(false);
  if (const auto times = read())
    return judge(now, *times);
  looked_ = now;
  before_.reset();
  short_.store(false);
}

std::optional<CpuShare::Times> CpuShare::read() noexcept {
  const NoCancel whole;
  if (const pid_t now = gettid(); now != thread_ || file_ < 0) {
    if (file_ >= 0) {
      own_fds::remove(file_);
      own_fds::shut(file_);
    }
    thread_ = now;
    before_.reset();
    file_ = own_fds::raised(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
    if (file_ < 0)
      return std::nullopt;
    own_fds::add(file_);
  }
  std::array<char, 96> text;
  const ssize_t got = pread(file_, text.data(), text.size(), 0);
  if (got <= 0)
    return std::nullopt;
  const char* const end = text.data() + got;
  int64_t ran = 0;
  int64_t waited = 0;
  const auto first = std::from_chars(text.data(), end, ran);
  if (first.ec != std::errc{} || first.ptr == end ||
      std::from_chars(first.ptr + 1, end, waited).ec != std::errc{})
    return std::nullopt;
  return Times{nanoseconds{ran}, nanoseconds{waited}};
}

} // namespace adverb::service
