// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/critical_size.h"
#include "world/clock.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace adverb::registration {

namespace {

using Time = std::chrono::nanoseconds;

// Two sizes make a line of what a size takes. The larger one is where adverb's own blocks and
// leases lie, and RLIMIT_MEMLOCK has room for it.
constexpr size_t small = 16 << 10;
constexpr size_t large = 256 << 10;
constexpr int rounds = 5;

// Private anonymous memory of the larger size.
class Pages {
public:
  Pages() : at_(mmap(nullptr, large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Pages() {
    if (*this)
      munmap(at_, large);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  explicit operator bool() const noexcept { return at_ != MAP_FAILED; }
  void* data() const noexcept { return at_; }
  void touch() const noexcept { memset(at_, 1, large); }
  void drop() const noexcept { madvise(at_, large, MADV_DONTNEED); }

private:
  void* const at_;
};

// What a size takes, as a line through the two.
struct Line {
  Time at_small = Time::max();
  Time at_large = Time::max();

  void note(size_t bytes, Time took) {
    Time& least = bytes == small ? at_small : at_large;
    least = std::min(least, took);
  }
  double slope() const {
    return static_cast<double>((at_large - at_small).count()) / (large - small);
  }
  double fixed() const { return static_cast<double>(at_small.count()) - (slope() * small); }
};

// Where copying begins to take longer.
uint64_t crossing(const Line& copy, const Line& window) {
  const double gains = copy.slope() - window.slope();
  if (gains <= 0) // it never does, or always
    return copy.at_large < window.at_large ? critical_most : critical_least;
  const double bytes = (window.fixed() - copy.fixed()) / gains;
  return static_cast<uint64_t>(std::clamp(bytes, double{critical_least}, double{critical_most}));
}

class Measurement {
public:
  Measurement(Clock& clock, const Registering& device) : clock_(clock), device_(device) {}

  std::optional<CriticalSize> run() {
    if (!mine_ || !other_)
      return {};
    other_.touch();
    for (int round = 0; round < rounds; ++round)
      for (const size_t bytes : {small, large}) {
        mine_.touch();
        if (!copy(bytes, copy_) || copy_.at_large == Time::zero() || !window(bytes, window_))
          return {};
        mine_.drop();
        copy(bytes, copy_absent_);
        mine_.drop();
        if (!window(bytes, window_absent_))
          return {};
      }
    return CriticalSize{crossing(copy_, window_), crossing(copy_absent_, window_absent_)};
  }

private:
  // False: it took no time, so nothing can be told by this clock.
  bool copy(size_t bytes, Line& line) {
    const Time begin = clock_.now();
    memcpy(mine_.data(), other_.data(), bytes);
    asm volatile("" ::: "memory"); // it is nobody's otherwise
    const Time took = clock_.now() - begin;
    line.note(bytes, took);
    return took > Time::zero();
  }

  bool window(size_t bytes, Line& line) {
    const Time begin = clock_.now();
    ibv_mr* const mr = device_.reg(mine_.data(), bytes);
    if (mr == nullptr)
      return false;
    device_.dereg(mr);
    line.note(bytes, clock_.now() - begin);
    return true;
  }

  Clock& clock_;
  const Registering& device_;
  const Pages mine_;
  const Pages other_;
  Line copy_;
  Line window_;
  Line copy_absent_;
  Line window_absent_;
};

// Empty: no file is called so.
std::string path_in(const std::string& directory, std::string_view device) {
  if (device.empty() || device.find('/') != std::string_view::npos)
    return {};
  return directory + "/adverb-critical-size." + std::to_string(geteuid()) + "." +
         std::string(device);
}

constexpr const char* form = "critical size 1: %llu resident %llu absent\n";

class File {
public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0)
      close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const noexcept { return fd_; }

private:
  const int fd_;
};

bool is_likely(uint64_t bytes) {
  return bytes >= critical_least && bytes <= critical_most;
}

} // namespace

std::optional<CriticalSize> measure_critical_size(Clock& clock, const Registering& device) {
  return Measurement(clock, device).run();
}

std::optional<CriticalSize> kept_critical_size(const std::vector<std::string>& directories,
                                               std::string_view device) {
  for (const auto& directory : directories) {
    const std::string path = path_in(directory, device);
    const File file(
        path.empty() ? -1 : open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    struct stat status{};
    // In /dev/shm anybody may have put it there.
    if (file.fd() < 0 || fstat(file.fd(), &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_uid != geteuid())
      continue;
    std::array<char, 128> text{};
    unsigned long long resident = 0;
    unsigned long long absent = 0;
    if (read(file.fd(), text.data(), text.size() - 1) > 0 &&
        sscanf(text.data(), form, &resident, &absent) == 2 && is_likely(resident) &&
        is_likely(absent))
      return CriticalSize{resident, absent};
  }
  return {};
}

// Whole or not at all: others read it meanwhile.
void keep_critical_size(const std::vector<std::string>& directories, std::string_view device,
                        const CriticalSize& size) {
  for (const auto& directory : directories) {
    const std::string path = path_in(directory, device);
    if (path.empty())
      return;
    const std::string fresh = path + "." + std::to_string(getpid());
    bool written = false;
    {
      const File file(
          open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
      if (file.fd() < 0)
        continue;
      written = dprintf(file.fd(), form, static_cast<unsigned long long>(size.resident),
                        static_cast<unsigned long long>(size.absent)) > 0;
    }
    if (written && rename(fresh.c_str(), path.c_str()) == 0)
      return;
    unlink(fresh.c_str());
  }
}

} // namespace adverb::registration
