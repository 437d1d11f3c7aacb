// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Who carries requests to keys that the peer's CPU serves, too: the device or that CPU. The
// policy's rules say it, in order; where one says "auto", measurement does.
//
// Of each class of length there are three choices: all by the device, all by the CPU, or those to
// hot pages by the device and the others by the CPU, as uRDMA does (arXiv 2510.00735). Requests are
// counted, and after each so many the clock says how long they took. Now and then another choice is
// tried for as many: it stays if the rate was better twice, and is tried more seldom if it was not.
// A rate that has become less, and stays so, has the others tried at once.
//
// The rate is that of posts. Programs that keep so many outstanding post as fast as requests
// complete, and an epoch is longer than what may be outstanding. For programs that post at a rate
// of their own no choice is better than another, and the device keeps all.
//
// A peer whose CPU is short says so. Then the device keeps all that measurement decides, for a
// while: twice as long each time that the peer says so again soon after.
//
// One for each queue pair, under its lock. Nothing here allocates; the clock is read once an epoch.
#pragma once

#include "observe/trace.h"
#include "policy/steer.h"
#include "steering/opcode.h"
#include "steering/sketch.h"
#include "world/clock.h"

#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <vector>

namespace adverb::steering {

class Steer {
public:
  enum class Choice : uint8_t { device, cpu, split };

  // `outstanding`: requests that the program may have at a time. `trace`, if any, is told what is
  // chosen, and that it is this queue pair's.
  Steer(std::vector<policy::SteerRule> rules, Clock& clock, uint32_t outstanding,
        observe::Trace* trace = nullptr, uint32_t qpn = 0);

  // Whether the device is to carry a request; if so, it is counted as one.
  bool by_device(ibv_wr_opcode opcode, uint64_t address, uint64_t length) noexcept {
    if (!matters(opcode) || length == 0)
      return true;
    const policy::SteerRule* const rule = rule_of(opcode, address, length);
    if (rule == nullptr || rule->steer != policy::Steer::automatic)
      return rule == nullptr || rule->steer == policy::Steer::offload;
    return length > longest || measured_by_device(address, length);
  }
  // The rule that decides; null: none, and the device carries.
  const policy::SteerRule* rule_of(ibv_wr_opcode opcode, uint64_t address,
                                   uint64_t length) const noexcept {
    return policy::deciding(
        rules_, opcode == IBV_WR_RDMA_READ ? policy::Opcode::read : policy::Opcode::write, length,
        address);
  }
  // The peer's CPU carries one that by_device() has said no to.
  void count_unloaded(uint64_t address, uint64_t length) noexcept {
    if (length > longest)
      return;
    sketch_.touch(address);
    count(class_of(length));
  }

  // The peer's CPU is short. True: it was asked for something until now. Reads the clock.
  bool spare_cpu() noexcept;

  // For tests.
  Choice choice(uint64_t length) const noexcept { return classes_[class_of(length)].choice; }
  uint64_t switches() const noexcept { return switches_; }
  uint64_t probes() const noexcept { return probes_; }

private:
  static constexpr uint64_t longest = 4096; // bytes: what is longer the device always carries
  static constexpr size_t classes_count = 3;
  // Epochs from a probe to one that an alarm may begin; twice as many after each that was in vain.
  static constexpr uint32_t alarm_least = 8;
  struct Class { // of lengths
    Choice choice = Choice::device;
    uint32_t requests = 0; // of this epoch
  };
  enum class Stage : uint8_t { steady, settling, probing, returning };

  static bool matters(ibv_wr_opcode opcode) noexcept {
    return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
           opcode == IBV_WR_RDMA_READ;
  }
  // Up to 256, 1024 and 4096 bytes.
  static size_t class_of(uint64_t length) noexcept {
    return length <= 256 ? 0 : length <= 1024 ? 1 : 2;
  }
  bool measured_by_device(uint64_t address, uint64_t length) noexcept {
    const size_t c = class_of(length);
    const Choice choice = classes_[c].choice;
    if (choice == Choice::cpu || (choice == Choice::split && !sketch_.is_hot(address)))
      return false;
    sketch_.touch(address);
    count(c);
    return true;
  }
  void count(size_t c) noexcept {
    ++classes_[c].requests;
    if (--left_ == 0) [[unlikely]]
      end_epoch();
  }
  void end_epoch() noexcept;
  void begin_epoch(std::chrono::nanoseconds now) noexcept;
  void steady(double rate, std::chrono::nanoseconds now) noexcept;
  void probed(double rate) noexcept;
  void raise_alarm() noexcept;
  void begin_probe() noexcept;
  void tell_choice(size_t c) noexcept;

  const std::vector<policy::SteerRule> rules_;
  Clock& clock_;
  observe::Trace* const trace_;
  const uint32_t qpn_;
  const uint32_t epoch_; // requests
  uint32_t left_;
  std::chrono::nanoseconds began_{};
  std::array<Class, classes_count> classes_{};
  Sketch sketch_;
  Stage stage_ = Stage::steady;
  double rate_ = 0;          // requests per ns of the choices that stand; 0: not known
  bool differed_ = false;    // the epoch before
  bool was_better_ = false;  // in its first epoch, the choice that is tried
  double rate_found_ = 0;    // then
  uint32_t until_probe_ = 1; // epochs
  uint32_t interval_ = 1;    // epochs between probes, at most: doubles with each in vain
  uint32_t wait_ = 1;        // from the last probe to the next, if nothing changes
  uint32_t alarm_wait_ = alarm_least;
  uint32_t in_a_row_ = 0;                   // so many choices are still to be tried after a change
  size_t next_ = 0;                         // class and choice that is tried next, by turns
  size_t probed_ = 0;                       // class that is tried
  Choice before_ = Choice::device;          // its choice before
  std::chrono::nanoseconds spared_until_{}; // the peer's CPU
  std::chrono::nanoseconds pause_{};        // so long, the last time
  uint64_t switches_ = 0;
  uint64_t probes_ = 0;
};

} // namespace adverb::steering
