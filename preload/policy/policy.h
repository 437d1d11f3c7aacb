// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the policy says for this process: a JSON file, validated against
// policy/adverb-policy.schema.json and compiled to flat tables for one program.
//
// Questions are answered without locks or allocation, from any thread; the first rule that matches
// and sets the action in question wins. With no such rule: register by the first backend of the
// list, peers "auto", order "strict", steer "offload", reliability "device". Loading allocates and
// reads files; it never throws and reports every error at once.
#pragma once

#include "policy/backends.h"
#include "policy/settings.h"
#include "policy/steer.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace adverb::policy {

struct Rule;     // policy/rule.h
struct Document; // policy/rule.h

struct RegionQuery {
  std::string_view device; // ibv_get_device_name()
  uint64_t length = 0;     // bytes
  unsigned access = 0;     // IBV_ACCESS_* bits the program passed
};

struct QpQuery {
  std::string_view device;
  int qp_type = 0;                // enum ibv_qp_type
  const in6_addr* peer = nullptr; // v4-mapped or IPv6; nullptr while it is not known
};

struct RuleHits {
  size_t index = 0; // position in the file's "rules"
  std::string name; // "name" of the rule, else "rule 2"
  uint64_t hits = 0;
  size_t slot = 0; // of Policy::tell_hits_to()
};

/// Hears of every hit of a rule, from any thread: for counters others can read.
class Hits {
public:
  virtual void hit(size_t slot) noexcept = 0; ///< Policy::tell_hits_to()

protected:
  ~Hits() = default;
};

class Policy {
public:
  explicit Policy(Document document);
  ~Policy();
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;

  // How to register a region: a row of `backends`. Counts a hit for the rule that decided.
  const BackendTraits& region(const RegionQuery& query) const noexcept;
  // False: every region of the device is pinned as stock does, whatever its length and rights.
  bool may_unpin(std::string_view device) const noexcept;

  // What rules say of a queue pair by one of their actions, such as &Rule::order (policy/rule.h).
  // While the peer is unknown the answer is the one that is safe for every peer if any peer may get
  // it. Ask again once the address is known. Counts a hit for the rule that decided.
  template <auto action> auto ask(const QpQuery& query) const noexcept {
    using Word = typename decltype(word_of(action))::type;
    const auto* const rule = rule_for(
        query, [](const Rule& each) { return (each.*action).has_value(); },
        [](const Rule& each) { return *(each.*action) == Word{}; });
    if (rule == nullptr)
      return Word{};
    count(*rule);
    return *(rule->*action);
  }

  // Who carries requests of a queue pair to pinned regions of its peer: the rules that can match,
  // and behind them, of a queue pair with reliability in software, one that says unload;
  // of which the first match wins (deciding() in policy/steer.h); without a match the NIC does. Ask
  // when the peer is known: until then, a rule for certain peers says offload. `by_packets`:
  // whether the queue pair's reliability is in software now; nothing: if the policy says so, or
  // "auto". Allocates.
  std::vector<SteerRule> steering(const QpQuery& query,
                                  std::optional<bool> by_packets = std::nullopt) const;
  // False: steering() says nothing but offload, whatever is measured.
  bool steers(const QpQuery& query) const noexcept;
  // Whether losses of some queue pairs of the device, of that type, are made good in software, now
  // or at times.
  bool repairs(std::string_view device, int qp_type) const noexcept;
  // Counts a hit for the rule that decided a request.
  void steered_by(const SteerRule& rule) const noexcept;

  // Bytes below which copying into staging beats a window, if a rule overrides the measurement.
  std::optional<uint64_t> copy_below(std::string_view device) const noexcept;

  // Nothing could ever be changed for this program: every object may be left to the provider.
  bool idle() const noexcept { return idle_; }

  // Regions with remote rights may go unpinned although no peer is ever asked: remote access to
  // them is bound to fail. Not an error, because a program may never let anybody use those rights.
  bool strands_remote() const noexcept { return strands_remote_; }

  const Settings& settings() const noexcept { return settings_; }
  const LinkSettings& link() const noexcept { return settings_.link; }
  const LogSettings& log() const noexcept { return settings_.log; }
  uint64_t staging() const noexcept { return settings_.staging; }
  std::optional<uint64_t> pinned_budget() const noexcept { return settings_.pinned_budget; }
  std::chrono::milliseconds recall_wait() const noexcept { return settings_.recall_wait; }
  bool serves() const noexcept { return settings_.serve; }
  const std::string& source() const noexcept { return source_; } // path, "profile NAME" or built-in
  const std::string& description() const noexcept { return description_; }

  std::span<const Rule> rules() const noexcept; // those that can apply to this program
  std::vector<RuleHits> hits() const;           // one per entry of rules()
  // Before the first question. `slots`: by which number the listener knows each of rules().
  void tell_hits_to(Hits* listener, std::vector<size_t> slots);
  // Before the first question: in the place of `running`, whose process goes on with the settings
  // that cannot change (Takes in schema.h).
  void take_place_of(const Policy& running);

private:
  using Says = bool (*)(const Rule&);
  template <typename T> static std::type_identity<T> word_of(std::optional<T> Rule::*);
  const Rule* rule_for(const QpQuery& query, Says sets, Says is_safe) const noexcept;
  const Rule* by_packets(const QpQuery& query) const noexcept;
  void count(const Rule& rule) const noexcept;

  std::vector<Rule> rules_;
  std::unique_ptr<std::atomic<uint64_t>[]> hits_;
  Hits* listener_ = nullptr;
  std::vector<size_t> slots_; // of the rules, at the listener; empty: none listens
  Settings settings_;
  std::string source_;
  std::string description_;
  bool idle_;
  bool strands_remote_;
};

// One thing wrong with a policy. text() reads "FILE: POINTER: reason; remedy".
struct Error {
  std::string file;
  std::string
      pointer; // JSON pointer, "LINE:COLUMN" for a syntax error, or empty for the whole file
  std::string reason;
  std::string remedy; // what to do; may be empty
  std::string text() const;
};

// Either a policy or at least one error.
struct Loaded {
  std::unique_ptr<Policy> policy;
  std::vector<Error> errors;
  std::string path; // of the file it came from; empty: from none
  std::string text; // of that file
  explicit operator bool() const noexcept { return policy != nullptr; }
};

// `program` is the absolute path of the executable the rules are compiled for; empty means this
// one.
Loaded load_text(std::string_view text, std::string_view file, std::string_view program = {});
Loaded load_file(const std::string& path, std::string_view program = {});
Loaded load_profile(std::string_view name, std::string_view program = {});
// "named" as in ADVERB_POLICY: a path when it holds a '/' or ends in ".json", else a profile.
Loaded load_named(const std::string& named, std::string_view program = {});
// ADVERB_POLICY, else $XDG_CONFIG_HOME/adverb/policy.json, else /etc/adverb/policy.json, else the
// built-in default. Under secure execution (setuid, file capabilities) the environment is ignored.
Loaded load_for_this_process();
Loaded load_for_program(std::string_view program);

// The names of the embedded profiles, sorted.
std::vector<std::string_view> profile_names();

} // namespace adverb::policy
