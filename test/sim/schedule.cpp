// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "schedule.h"
#include "program.h"

#include <array>
#include <cstdio>
#include <cstdlib>

namespace sim {

namespace {

constexpr size_t steps_max = 20'000;
constexpr size_t timers_max = 200; // while nothing else happens

// The ways a user may have it. Regions of a program's own are smaller than the shared one is large.
constexpr std::array policies = {
    R"({"version": 1, "rules": [{"register": "none"}]})",
    R"({"version": 1, "rules": [{"register": "none"}, {"copy_below": "64B"}]})",
    R"({"version": 1, "rules": [{"match": {"access": ["local_only"]}, "register": "none"},
                                {"register": "pinned"}]})",
    R"({"version": 1, "rules": [{"match": {"max_size": "8KiB"}, "register": "pinned"},
                                {"register": "none"}]})",
    R"({"version": 1, "rules": [{"match": {"max_size": "8KiB"}, "register": "none"},
                                {"register": "pinned"}, {"copy_below": "256B"}]})",
};

const adverb::policy::Policy& policy(uint32_t which) {
  static std::array<std::unique_ptr<const adverb::policy::Policy>, policies.size()> all;
  auto& one = all.at(which);
  if (!one) {
    auto loaded = adverb::policy::load_text(policies.at(which), "sim", "/usr/bin/sim");
    for (const auto& error : loaded.errors)
      fprintf(stderr, "sim: %s\n", error.text().c_str());
    if (!loaded)
      exit(2);
    one = std::move(loaded.policy);
  }
  return *one;
}

class Schedule {
public:
  Schedule(Choices& choices, const Extras& extras, bool loud) : choices_(choices), net_(choices) {
    oracle_.errors_bar = extras.errors;
    oracle_.loud = fabric_.loud = loud;
    const uint32_t which = choices.below(policies.size());
    if (loud)
      printf("  policy %s\n", policies.at(which));
    // Both by the same, or each by its own.
    const uint32_t other = choices.once_in(4) ? choices.below(policies.size()) : which;
    programs_[0] =
        std::make_unique<Program>(0, choices, fabric_, net_, oracle_, policy(which), loud);
    programs_[1] =
        std::make_unique<Program>(1, choices, fabric_, net_, oracle_, policy(other), loud);
    pairs_ = choices.between(1, 3);
    for (uint32_t i = 0; i < pairs_; ++i) {
      programs_[0]->make_qp(2 * i);
      programs_[1]->make_qp(2 * i + 1);
    }
    for (uint32_t i = 0; i < pairs_; ++i) {
      programs_[0]->connect(2 * i, *programs_[1], 2 * i + 1);
      programs_[1]->connect(2 * i + 1, *programs_[0], 2 * i);
    }
  }

  Outcome run() {
    while (steps_ < steps_max && !(programs_[0]->done() && programs_[1]->done()) && !broken() &&
           !choices_.spent())
      step();
    wind_up();
    Outcome outcome;
    if (!broken())
      oracle_.ended({programs_[0]->shared(), programs_[1]->shared()});
    close();
    outcome.findings = oracle_.findings();
    for (const auto& list : {programs_[0]->trouble, programs_[1]->trouble, fabric_.misuse})
      outcome.findings.insert(outcome.findings.end(), list.begin(), list.end());
    outcome.steps = steps_;
    outcome.requests = oracle_.operations();
    outcome.queue_pairs = 2 * pairs_;
    return outcome;
  }

private:
  bool broken() const {
    return !oracle_.findings().empty() || !fabric_.misuse.empty() ||
           !programs_[0]->trouble.empty() || !programs_[1]->trouble.empty();
  }

  void offer() {
    offered_.clear();
    fabric_.offer(offered_);
    net_.offer(offered_);
    for (const auto& program : programs_)
      program->offer(offered_);
  }

  void step() {
    ++steps_;
    offer();
    const auto machines = static_cast<uint32_t>(offered_.size());
    const uint32_t which = choices_.below(machines + 2 * programs_.size());
    if (which < machines)
      offered_[which]();
    else
      programs_[(which - machines) % programs_.size()]->step();
  }

  // Lets everything come to its end.
  void wind_up() {
    size_t timers = 0;
    for (; steps_ < steps_max && !broken(); ++steps_) {
      offer();
      if (!offered_.empty() && !choices_.once_in(8)) {
        offered_[choices_.below(static_cast<uint32_t>(offered_.size()))]();
        continue;
      }
      bool any = false;
      for (const auto& program : programs_)
        any = program->wind_up() || any;
      offer();
      if (any || !offered_.empty())
        continue;
      bool idle = true;
      for (const auto& program : programs_)
        idle = program->idle() && idle;
      if (idle || ++timers > timers_max)
        break;
      for (const auto& program : programs_)
        program->offer_late(offered_);
      if (offered_.empty())
        break;
      offered_[choices_.below(static_cast<uint32_t>(offered_.size()))]();
    }
    if (steps_ < steps_max)
      return;
    // Who still has something to do?
    std::string who;
    const auto ask = [&](const char* name, auto& part) {
      offered_.clear();
      part.offer(offered_);
      if (!offered_.empty())
        who += std::string(who.empty() ? "" : ", ") + name;
    };
    ask("the device", fabric_);
    ask("the links", net_);
    ask("the service of program 0", *programs_[0]);
    ask("the service of program 1", *programs_[1]);
    oracle_.found("it does not come to an end: " + (who.empty() ? "requests wait" : who));
  }

  void close() {
    for (const auto& program : programs_)
      program->close();
    for (size_t i = 0; i < steps_max; ++i) {
      offer();
      if (offered_.empty())
        break;
      offered_[0]();
    }
    net_.close();
    if (!broken() && fabric_.registrations() != 0)
      oracle_.found(std::to_string(fabric_.registrations()) + " regions of the device are left");
  }

  Choices& choices_;
  Fabric fabric_;
  Net net_;
  Oracle oracle_{2, Program::shared_cells};
  std::array<std::unique_ptr<Program>, 2> programs_;
  std::vector<std::function<void()>> offered_;
  uint32_t pairs_ = 0;
  size_t steps_ = 0;
};

} // namespace

Outcome run(Choices& choices, const Extras& extras, bool loud) {
  Schedule schedule(choices, extras, loud);
  return schedule.run();
}

} // namespace sim
