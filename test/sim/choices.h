// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Every decision of a schedule comes from here, so what was decided is the schedule: given the same
// answers again it repeats itself, and given fewer and smaller ones it is a smaller schedule of the
// same kind. 0 is the simplest answer to every question.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace sim {

class Choices {
public:
  explicit Choices(uint64_t seed) : state_(seed * 2 + 1), fresh_(true) {}
  // Answers again what was answered; 0 after that.
  explicit Choices(std::vector<uint32_t> record) : record_(std::move(record)) {}

  // 0 to n - 1.
  uint32_t below(uint32_t n) {
    uint32_t answer = 0;
    if (fresh_) {
      answer = n > 1 ? static_cast<uint32_t>((next() >> 32) * n >> 32) : 0;
    } else if (asked_ < record_.size()) {
      answer = record_[asked_] < n ? record_[asked_] : n - 1;
    }
    ++asked_;
    taken_.push_back(answer);
    return answer;
  }
  // Yes, once in n times.
  bool once_in(uint32_t n) { return below(n) == n - 1; }
  uint32_t between(uint32_t least, uint32_t most) { return least + below(most - least + 1); }

  // A record has no more to say.
  bool spent() const noexcept { return !fresh_ && asked_ >= record_.size(); }
  const std::vector<uint32_t>& taken() const noexcept { return taken_; }

private:
  // SplitMix64 (Steele, Lea, Flood 2014).
  uint64_t next() noexcept {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }

  uint64_t state_ = 0;
  bool fresh_ = false;
  std::vector<uint32_t> record_;
  size_t asked_ = 0;
  std::vector<uint32_t> taken_;
};

} // namespace sim
