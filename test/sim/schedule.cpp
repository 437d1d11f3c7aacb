// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "schedule.h"
#include "fibre.h"
#include "program.h"
#include "rogue.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <tuple>

namespace sim {

namespace {

constexpr size_t steps_max = 20'000;
constexpr size_t timers_max = 200; // while nothing else happens
constexpr size_t timers_idle = 8;  // of them, where nobody waits: unreported requests may need some

// The ways a user may have it, each with `order` "relaxed", too. The regions that peers reach are
// of 512 bytes and 4 KiB, a program's own of 5 KiB and more than 40.
constexpr std::array policies = {
    R"({"register": "none"})",
    R"({"register": "none"}, {"copy_below": "64B"})",
    R"({"match": {"access": ["local_only"]}, "register": "none"}, {"register": "pinned"})",
    R"({"match": {"access": ["local_only"]}, "register": "none"}, {"register": "pinned"},
       {"copy_below": "64B"})",
    R"({"match": {"max_size": "8KiB"}, "register": "pinned"}, {"register": "none"})",
    R"({"match": {"max_size": "8KiB"}, "register": "pinned"}, {"register": "none"},
       {"copy_below": "256B"})",
    R"({"match": {"max_size": "8KiB"}, "register": "none"}, {"register": "pinned"},
       {"copy_below": "256B"})",
    // Of what peers reach, the smaller region is pinned, or the other.
    R"({"match": {"max_size": "1KiB"}, "register": "pinned"}, {"register": "none"},
       {"copy_below": "64B"})",
    R"({"match": {"max_size": "1KiB"}, "register": "pinned"},
       {"match": {"access": ["local_only"]}, "register": "pinned"}, {"register": "none"})",
    R"({"match": {"max_size": "1KiB"}, "register": "pinned"},
       {"match": {"access": ["local_only"], "max_size": "8KiB"}, "register": "pinned"},
       {"register": "none"}, {"copy_below": "1KiB"})",
    R"({"match": {"max_size": "1KiB"}, "register": "none"}, {"register": "pinned"})",
    R"({"register": "elastic"})",
    R"({"register": "elastic"}, {"copy_below": "64B"})",
    R"({"match": {"access": ["local_only"]}, "register": "none"}, {"register": "elastic"})",
    R"({"match": {"max_size": "1KiB"}, "register": "pinned"}, {"register": "elastic"})",
    R"({"match": {"max_size": "1KiB"}, "register": "none"}, {"register": "elastic"})",
    R"({"register": "np"})",
    R"({"register": "np"}, {"copy_below": "64B"})",
    R"({"match": {"access": ["local_only"]}, "register": "pinned"}, {"register": "np"})",
    R"({"match": {"max_size": "1KiB"}, "register": "pinned"}, {"register": "np"})",
    R"({"match": {"max_size": "1KiB"}, "register": "elastic"}, {"register": "np"})",
    R"({"match": {"max_size": "1KiB"}, "register": "np"}, {"register": "none"})",
    // Not all that is used again and again has room as a lease.
    R"({"register": "elastic"})",
    R"({"match": {"access": ["local_only"]}, "register": "none"}, {"register": "elastic"},
       {"copy_below": "64B"})",
    R"({"register": "elastic"}, {"copy_below": "1KiB"})",
    // As few windows and as little staging as may be.
    R"({"register": "none"}, {"copy_below": "1KiB"})",
    R"({"match": {"access": ["local_only"]}, "register": "none"}, {"register": "pinned"})",
};
constexpr uint32_t tight = policies.size() - 2; // from this one on
constexpr uint32_t narrow = tight - 3;          // the same
// Half of it may be leased: the larger region lies on two pages, the smaller on one, or on a huge
// one each.
constexpr std::array narrow_budgets = {"16KiB", "32KiB", "4MiB"};

// Who carries requests to pinned regions, and long SENDs. As lengths are random, requests change
// ways at random.
constexpr std::array steerings = {
    "",
    R"(, {"match": {"opcode": ["write", "read"], "length": {"max": "40B"}}, "steer": "unload"},
       {"match": {"length": {"min": "100B", "max": "400B"}}, "steer": "unload"})",
    R"(, {"steer": "unload"})",
    // SENDs of more than 512 bytes have these go ahead, as packets are of the least length.
    R"(, {"reliability": "software"})",
    R"(, {"steer": "offload"}, {"reliability": "software"})",
    R"(, {"reliability": "auto"})",
    R"(, {"match": {"length": {"max": "100B"}}, "steer": "unload"}, {"reliability": "auto"})",
};
constexpr uint32_t measured = steerings.size() - 2; // from this one on

struct Chosen {
  uint32_t policy = 0;
  bool relaxed = false;
  uint32_t steering = 0;
  bool operator<(const Chosen& other) const {
    return std::tie(policy, relaxed, steering) <
           std::tie(other.policy, other.relaxed, other.steering);
  }
};

std::string text_of(const Chosen& which) {
  std::string limits = R"("pinned_budget": "16MiB", )";
  if (which.policy >= tight)
    limits = R"("pinned_budget": "4KiB", "staging": "128KiB", )";
  else if (which.policy >= narrow)
    limits =
        R"("pinned_budget": ")" + std::string(narrow_budgets.at(which.policy - narrow)) + R"(", )";
  return R"({"version": 1, )" + limits + R"("rules": [)" + policies.at(which.policy) +
         (which.relaxed ? R"(, {"order": "relaxed"})" : "") + steerings.at(which.steering) + "]}";
}

// Strict three times of four, steered once in four.
Chosen choose_policy(Choices& choices) {
  Chosen chosen;
  chosen.policy = choices.below(policies.size());
  chosen.relaxed = choices.once_in(4);
  if (choices.once_in(4))
    chosen.steering = choices.between(1, steerings.size() - 1);
  return chosen;
}

const adverb::policy::Policy& policy(const Chosen& which) {
  static std::map<Chosen, std::unique_ptr<const adverb::policy::Policy>> all;
  auto& one = all[which];
  if (!one) {
    auto loaded = adverb::policy::load_text(text_of(which), "sim", "/usr/bin/sim");
    for (const auto& error : loaded.errors)
      fprintf(stderr, "sim: %s\n", error.text().c_str());
    if (!loaded)
      exit(2);
    one = std::move(loaded.policy);
  }
  return *one;
}

// Points of the library between two interruptions, at most. 0: every step runs to its end.
constexpr std::array<uint32_t, 8> periods = {0, 0, 0, 0, 6, 12, 40, 150};

class Schedule {
public:
  Schedule(Choices& choices, bool loud)
      : choices_(choices), period_(periods[choices.below(periods.size())]), net_(choices),
        fibres_(choices, period_), loud_(loud) {
    oracle_.loud = fabric_.loud = loud;
    if (net_.wires)
      net_.wires->loud = loud;
    fabric_.reaches = [this](uint32_t qpn, uint32_t key, uint64_t address) {
      net_.reached(qpn, key, address);
    };
    fabric_.cleans = choices.once_in(2);
    fabric_.reuses_keys = choices.once_in(2);
    fabric_.roomy = choices.once_in(2);
    fabric_.alike = choices.once_in(6);
    fabric_.stops_sends = choices.once_in(2);
    fabric_.trails = choices.once_in(2);
    if (choices.once_in(12))
      fabric_.longest = 1024;
    fabric_.windows = choices.below(2) * choices.below(12);
    const Chosen which = choose_policy(choices);
    if (loud)
      printf("  policy %s\n", text_of(which).c_str());
    // Both by the same, or each by its own.
    const Chosen other = choices.once_in(4) ? choose_policy(choices) : which;
    judges_ = which.steering >= measured || other.steering >= measured;
    programs_[0] =
        std::make_unique<Program>(0, choices, fabric_, net_, oracle_, policy(which), loud);
    programs_[1] =
        std::make_unique<Program>(1, choices, fabric_, net_, oracle_, policy(other), loud);
    if (net_.wires && net_.wires->vouches_for_nobody() && choices.once_in(2))
      rogue_ = std::make_unique<Rogue>(choices, fabric_, net_, policy(which));
    pairs_ = choices.between(1, 3);
    // The first is reliable, and most are.
    constexpr std::array<ibv_qp_type, 8> types = {IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_RC,
                                                  IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UC, IBV_QPT_UD};
    for (uint32_t i = 0; i < pairs_; ++i) {
      const ibv_qp_type type = i == 0 ? IBV_QPT_RC : types.at(choices.below(types.size()));
      programs_[0]->make_qp(type);
      programs_[1]->make_qp(type);
    }
    for (uint32_t i = 0; i < pairs_; ++i)
      Program::connect(*programs_[0], *programs_[1], i);
    if (choices.once_in(2))
      fabric_.loses = [this] { return choices_.once_in(6); };
    if (choices.once_in(4))
      programs_[0]->silence(*programs_[1]);
    if (const uint32_t refused = std::array{0, 0, 0, 0, 0, 30, 4}[choices.below(7)]; refused != 0)
      fabric_.refuses = [this, refused] {
        if (lavish_ || !choices_.once_in(refused))
          return false;
        oracle_.starved();
        return true;
      };
    if (const uint32_t refused = choices.once_in(8) ? 30 : 0; refused != 0)
      fabric_.crowded = [this, refused] {
        if (lavish_ || !choices_.once_in(refused))
          return false;
        oracle_.starved();
        return true;
      };
  }

  Outcome run() {
    const uint32_t loss = choices_.once_in(10) && !net_.wires ? 20 * choices_.between(1, 20) : 0;
    const uint32_t lies =
        choices_.once_in(12) && !net_.wires ? 20 * choices_.between(1, 10) : 0; // from then on
    const bool leisurely = choices_.once_in(4); // terms of leases go by meanwhile
    // Times that all channels end, and others are made.
    uint32_t parts = choices_.once_in(10) && !net_.wires ? choices_.between(1, 3) : 0;
    const uint32_t apart = 20 * choices_.between(1, 8);
    // Times that connections are lost, of which no request is to notice anything.
    uint32_t cuts = net_.wires ? choices_.below(4) : 0;
    const uint32_t cut = choices_.between(5, 100);
    while (steps_ < steps_max && !(programs_[0]->done() && programs_[1]->done()) && !broken() &&
           !choices_.spent()) {
      ++steps_;
      offer();
      const bool still = offered_.empty();
      for (const auto& program : programs_)
        offer(*program, &Program::offer_own);
      if (cuts != 0 && steps_ % cut == 0) {
        --cuts;
        net_.wires->cut();
      }
      if (loss != 0 && steps_ == loss) {
        part();
        net_.lose();
      }
      if (parts != 0 && steps_ % apart == 0) {
        --parts;
        part();
        net_.part();
        for (const auto& program : programs_)
          program->empty_all();
      }
      if (lies != 0 && steps_ == lies) {
        part();
        const uint32_t liar = choices_.below(2);
        oracle_.lies(liar);
        net_.corrupt(service_of(liar));
      }
      if (net_.lies() && choices_.once_in(16))
        net_.lie();
      if (judges_ && choices_.once_in(30))
        net_.judge();
      // More than an honest peer ever has a proof wait.
      if (net_.lies() && !net_.proves() && choices_.once_in(200))
        for (const auto& program : programs_)
          program->let_time_pass();
      // What waits for a peer that was lost, or for the device to have room, or for a slot, goes on
      // after a while, and nothing else may.
      if ((net_.lost() || net_.parted() || net_.lies() || net_.proves() || fabric_.crowded ||
           leisurely) &&
          !net_.wires && choices_.once_in(8) &&
          std::ranges::none_of(programs_, [](const auto& p) { return p->is_taking_down(); }))
        for (const auto& program : programs_)
          offer(*program, &Program::offer_soon);
      // Of the links' own timers none is over while what it waits for is on its way.
      if (net_.wires && still && choices_.once_in(4))
        offer_next(&Program::offer_soon);
      if (!take_any())
        break;
    }
    lavish_ = true;
    if (programs_[0]->silent()) {
      wind_up(1);
      if (!broken() && fibres_.idle())
        oracle_.rested(0, {programs_[0]->shared(), programs_[1]->shared()});
    }
    wind_up(0);
    Outcome outcome;
    if (!broken() && fibres_.idle())
      for (const auto& program : programs_)
        if (program->overslept())
          oracle_.found("a completion has not woken who sleeps on its channel");
    if (!broken())
      oracle_.ended({programs_[0]->shared(), programs_[1]->shared()});
    close();
    outcome.findings = oracle_.findings();
    for (const auto& list :
         {programs_[0]->trouble, programs_[1]->trouble, fabric_.misuse, net_.misuse})
      outcome.findings.insert(outcome.findings.end(), list.begin(), list.end());
    if (!fibres_.idle())
      for (auto& program : programs_)
        (void)program.release(); // a thread that waits for ever still uses it
    outcome.steps = steps_;
    outcome.requests = oracle_.operations();
    outcome.queue_pairs = 2 * pairs_;
    outcome.preempts = period_ != 0;
    outcome.switches = fibres_.switches();
    return outcome;
  }

private:
  void part() {
    oracle_.parted();
    fabric_.ends_keys = true; // those of leases, a minute later
  }
  bool broken() const {
    return !oracle_.findings().empty() || !fabric_.misuse.empty() || !net_.misuse.empty() ||
           !programs_[0]->trouble.empty() || !programs_[1]->trouble.empty();
  }

  // What could happen beside what the programs do of their own. First those go on that were
  // interrupted.
  void offer() {
    offered_.clear();
    for (uint32_t fibre = 1; fibre < fibres_max; ++fibre)
      if (fibres_.runnable(fibre))
        offered_.push_back({fibre, nullptr});
    fresh_.clear();
    fabric_.offer(fresh_);
    net_.offer(fresh_);
    if (rogue_)
      rogue_->offer(fresh_);
    if (net_.wires)
      net_.wires->offer(fresh_);
    for (const auto& program : programs_)
      program->offer(fresh_);
    take_over();
  }
  template <typename Function> void offer(Program& program, Function function) {
    fresh_.clear();
    (program.*function)(fresh_);
    take_over();
  }
  // What a program does as its time has come; where they link for themselves, whose comes first.
  template <typename Function> void offer_next(Function function) {
    const bool later = programs_[1]->next_timer() < programs_[0]->next_timer();
    for (uint32_t i = 0; i < programs_.size(); ++i)
      if (!net_.wires || (i == 1) == later)
        offer(*programs_[i], function);
  }
  // A thread does one thing at a time.
  void take_over() {
    for (Step& step : fresh_)
      if (!fibres_.busy(step.fibre))
        offered_.push_back(std::move(step));
  }

  bool take_any() {
    if (offered_.empty())
      return false;
    take(offered_[choices_.below(static_cast<uint32_t>(offered_.size()))]);
    return true;
  }
  void take(Step& step) {
    if (rogue_)
      rogue_->catch_up(programs_[0]->now());
    if (net_.wires)
      for (const auto& program : programs_)
        program->catch_up(programs_[0]->now() > programs_[1]->now() ? programs_[0]->now()
                                                                    : programs_[1]->now());
    if (loud_ && period_ != 0)
      printf("                                            thread %u%s\n", step.fibre,
             step.go ? "" : " goes on");
    if (step.fibre == 0 || period_ == 0) {
      fibres_.turned_away();
      step.go();
    } else if (step.go) {
      fibres_.start(step.fibre, std::move(step.go));
    } else {
      fibres_.resume(step.fibre);
    }
  }

  // Lets everything come to its end. Programs before `first` take no part.
  void wind_up(uint32_t first) {
    size_t timers = 0;
    // As many again, however many the programs have taken.
    const size_t most = steps_ + steps_max;
    for (; steps_ < most && !broken(); ++steps_) {
      offer();
      if (!offered_.empty() && !choices_.once_in(8)) {
        // As long as anything new happens: else there is always somebody who polls.
        if (offered_.back().go)
          for (uint32_t i = first; i < programs_.size(); ++i)
            offer(*programs_[i], &Program::offer_poll);
        take_any();
        continue;
      }
      bool any = false;
      for (uint32_t i = first; i < programs_.size(); ++i) {
        if (fibres_.busy(poster_of(i)) || fibres_.busy(poller_of(i)))
          continue; // it comes to it later
        Step step{poller_of(i), [&program = *programs_[i]] {
                    fibres::countdown = 0; // not interrupted: nothing found shall mean nothing
                    program.wind_up();
                  }};
        take(step);
        any = any || fibres_.busy(poller_of(i)) || programs_[i]->found_some();
      }
      offer();
      if (any || !offered_.empty())
        continue;
      if (!fibres_.idle()) {
        oracle_.found("the threads wait for each other");
        break;
      }
      bool idle = true;
      for (const auto& program : programs_)
        idle = program->idle() && idle;
      idle = idle && first == 0;
      if (++timers > (idle ? timers_idle : timers_max))
        break;
      offer_next(&Program::offer_late);
      if (!take_any())
        break;
    }
    if (steps_ < most)
      return;
    // Who still has something to do?
    std::string who;
    const auto ask = [&](const char* name, auto& part) {
      fresh_.clear();
      part.offer(fresh_);
      if (!fresh_.empty())
        who += std::string(who.empty() ? "" : ", ") + name;
    };
    ask("the device", fabric_);
    ask("the links", net_);
    ask("the service of program 0", *programs_[0]);
    ask("the service of program 1", *programs_[1]);
    oracle_.found("it does not come to an end: " + (who.empty() ? "requests wait" : who));
  }

  // Everything that happens by itself, for a while.
  void run_out() {
    for (size_t i = 0; i < steps_max; ++i) {
      offer();
      if (offered_.empty())
        break;
      take(offered_[0]);
    }
  }

  void close() {
    fibres_.calm();
    run_out();
    if (!fibres_.idle())
      return;
    for (const auto& program : programs_)
      program->close();
    run_out();
    if (net_.wires)
      net_.wires->close();
    for (size_t i = 0; net_.wires && i < timers_max; ++i) {
      run_out();
      offer_next(&Program::offer_late);
      if (offered_.empty())
        break;
      take(offered_[0]);
    }
    net_.close();
    if (!broken() && fabric_.registrations() != 0)
      oracle_.found(std::to_string(fabric_.registrations()) + " regions of the device are left");
  }

  Choices& choices_;
  const uint32_t period_;
  Fabric fabric_;
  Net net_;
  Oracle oracle_{2, Program::shared_cells};
  Fibres fibres_;
  std::array<std::unique_ptr<Program>, 2> programs_;
  std::unique_ptr<Rogue> rogue_; // who lies of a queue pair, if there is one
  Steps offered_;
  Steps fresh_;
  uint32_t pairs_ = 0;
  size_t steps_ = 0;
  bool lavish_ = false; // there is always memory to register
  const bool loud_;
  bool judges_ = false; // paths are measured
};

} // namespace

Outcome run(Choices& choices, bool loud) {
  Schedule schedule(choices, loud);
  return schedule.run();
}

} // namespace sim
