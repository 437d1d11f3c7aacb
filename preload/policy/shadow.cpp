// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Finds rules that can never fire. Programs, devices and peers are compared pattern by pattern,
// which may miss a shadow but never invents one; rights, queue pair types, sizes and requests are
// compared as sets, so several earlier rules can cover a later one together.
#include "policy/actions.h"
#include "policy/compile.h"
#include "policy/glob.h"
#include "policy/suggest.h"

#include <algorithm>
#include <set>

namespace adverb::policy {
namespace {

using Earlier = std::vector<const Rule*>;

// True if whatever one of `later` matches, one of `earlier` matches too. An empty list is "*".
template <typename Matches>
bool globs_cover(const std::vector<std::string>& earlier, const std::vector<std::string>& later,
                 Matches&& matches) {
  if (earlier.empty() || std::ranges::find(earlier, "*") != earlier.end())
    return true;
  return !later.empty() && std::ranges::all_of(later, [&](const std::string& pattern) {
    return std::ranges::any_of(earlier, [&](const std::string& candidate) {
      return candidate == pattern || (glob_is_literal(pattern) && matches(candidate, pattern));
    });
  });
}

bool peers_cover(const std::vector<Cidr>& earlier, const std::vector<Cidr>& later) {
  if (earlier.empty())
    return true;
  return !later.empty() && std::ranges::all_of(later, [&](const Cidr& range) {
    return std::ranges::any_of(earlier,
                               [&](const Cidr& candidate) { return candidate.contains(range); });
  });
}

// Bounds are inclusive.
struct Interval {
  uint64_t from;
  uint64_t to;
};

// Each value of `wanted` is in one of the intervals.
bool intervals_cover(std::vector<Interval> intervals, Interval wanted) {
  std::ranges::sort(intervals, {}, &Interval::from);
  uint64_t next = wanted.from; // the first value not covered so far
  for (const Interval& interval : intervals) {
    if (interval.from > next)
      return false;
    if (interval.to >= wanted.to)
      return true;
    next = std::max(next, interval.to + 1);
  }
  return false;
}

// The sizes are covered by those rules that match this combination of rights.
bool sizes_cover(const Earlier& rules, const Match& match, RightsSet combination) {
  std::vector<Interval> intervals;
  for (const Rule* rule : rules)
    if (rule->match.rights & combination)
      intervals.push_back({rule->match.min_size, rule->match.max_size});
  return intervals_cover(std::move(intervals), {match.min_size, match.max_size});
}

bool regions_covered(const Earlier& rules, const Match& match) {
  for (unsigned bit = 0; bit < 8; ++bit) {
    const auto combination = static_cast<RightsSet>(1u << bit);
    if ((match.rights & combination) && !sizes_cover(rules, match, combination))
      return false;
  }
  return true;
}

bool queue_pairs_covered(const Earlier& rules, const Match& match) {
  QpTypeSet covered = 0;
  for (const Rule* rule : rules)
    if (peers_cover(rule->match.peers, match.peers))
      covered |= rule->match.qp_types;
  return (match.qp_types & ~covered) == 0;
}

// The lengths, between min_length and max_length of `wanted`, at which a rule starts to match.
// All lengths from one to the next are treated alike by the rules.
std::set<uint64_t> length_starts(const Earlier& rules, const Requests& wanted) {
  std::set<uint64_t> result = {wanted.min_length};
  const auto add = [&](uint64_t length) {
    if (length > wanted.min_length && length <= wanted.max_length)
      result.insert(length);
  };
  for (const Rule* rule : rules) {
    add(rule->match.requests.min_length);
    if (rule->match.requests.max_length < wanted.max_length)
      add(rule->match.requests.max_length + 1);
  }
  return result;
}

// The rules match requests of this length to each address of `wanted`.
bool addresses_cover(const Earlier& rules, uint64_t length, const Requests& wanted) {
  std::vector<Interval> intervals;
  for (const Rule* rule : rules) {
    const Requests& its = rule->match.requests;
    if (length >= its.min_length && length <= its.max_length)
      intervals.push_back({its.from, its.to});
  }
  return intervals_cover(std::move(intervals), {wanted.from, wanted.to});
}

bool lengths_cover(const Earlier& rules, const Requests& wanted) {
  return std::ranges::all_of(length_starts(rules, wanted), [&](uint64_t length) {
    return addresses_cover(rules, length, wanted);
  });
}

// Requests of one opcode on queue pairs of one type.
bool opcode_covered(const Earlier& rules, const Match& match, QpTypeSet type, OpcodeSet opcode) {
  if ((match.qp_types & type) == 0 || (match.requests.opcodes & opcode) == 0)
    return true;
  Earlier same;
  for (const Rule* rule : rules)
    if ((rule->match.qp_types & type) && (rule->match.requests.opcodes & opcode) &&
        peers_cover(rule->match.peers, match.peers))
      same.push_back(rule);
  return lengths_cover(same, match.requests);
}

bool requests_covered(const Earlier& rules, const Match& match) {
  // enum ibv_qp_type: RC and UC, and one that stands for those that no rule names.
  constexpr QpTypeSet types[] = {1u << 2, 1u << 3, 1u << 31};
  for (const QpTypeSet type : types)
    for (const Opcode opcode : {Opcode::write, Opcode::read})
      if (!opcode_covered(rules, match, type, set_of(opcode)))
        return false;
  return true;
}

// The earlier rules leave the action nothing to decide of what `match` matches.
bool covers(const Earlier& earlier, const Match& match, Subject subject) {
  switch (subject) {
  case Subject::region:
    return regions_covered(earlier, match);
  case Subject::queue_pair:
    return queue_pairs_covered(earlier, match);
  case Subject::request:
    return requests_covered(earlier, match);
  case Subject::device:
    break;
  }
  return !earlier.empty();
}

// Rules before `last` that set the action and match every program and device that `last` matches.
Earlier candidates(const std::vector<Rule>& rules, const Rule& last, const Action& action) {
  Earlier result;
  for (const Rule& rule : rules) {
    if (&rule == &last)
      break;
    if (action.set(rule) &&
        globs_cover(rule.match.programs, last.match.programs, program_matches) &&
        globs_cover(rule.match.devices, last.match.devices, glob_matches))
      result.push_back(&rule);
  }
  return result;
}

std::string blame(const Earlier& rules) {
  std::vector<std::string_view> names;
  for (const Rule* rule : rules)
    names.push_back(rule->name);
  return quoted_list(names, "and");
}

} // namespace

void find_shadowed(const std::vector<Rule>& rules, const std::string& file,
                   std::vector<Error>& errors) {
  for (const Rule& rule : rules) {
    const std::string pointer = "/rules/" + std::to_string(rule.index);
    std::vector<Error> dead;
    size_t set = 0;
    for (const Action& action : actions) {
      if (!action.set(rule))
        continue;
      ++set;
      const Earlier earlier = candidates(rules, rule, action);
      if (covers(earlier, rule.match, action.subject))
        dead.push_back({file, pointer + "/" + std::string(action.key),
                        "can never take effect: " + blame(earlier) + " always decide" +
                            (earlier.size() == 1 ? "s" : "") + " first",
                        "move it up, narrow the earlier match, or remove it"});
    }
    if (dead.size() == set && set > 0)
      errors.push_back(
          {file, pointer,
           "the rule can never fire: " + dead[0].reason.substr(dead[0].reason.find(": ") + 2),
           dead[0].remedy});
    else
      errors.insert(errors.end(), dead.begin(), dead.end());
  }
}

} // namespace adverb::policy
