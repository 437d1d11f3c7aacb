// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Finds rules that can never fire. Programs, devices and peers are compared pattern by pattern,
// which may miss a shadow but never invents one; rights, queue pair types and sizes are compared as
// sets, so several earlier rules can cover a later one together.
#include "policy/actions.h"
#include "policy/compile.h"
#include "policy/glob.h"
#include "policy/suggest.h"

#include <algorithm>
#include <functional>

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

// The sizes min…max are covered by the intervals of those rules that match this combination of
// rights. `rules` is walked in order of min_size.
bool sizes_cover(const Earlier& rules, const Match& match, RightsSet combination) {
  std::vector<const Match*> intervals;
  for (const Rule* rule : rules)
    if (rule->match.rights & combination)
      intervals.push_back(&rule->match);
  std::ranges::sort(intervals, {}, &Match::min_size);
  uint64_t next = match.min_size; // the first size not covered so far
  for (const Match* interval : intervals) {
    if (interval->min_size > next)
      return false;
    if (interval->max_size >= match.max_size)
      return true;
    next = std::max(next, interval->max_size + 1);
  }
  return false;
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

// The earlier rules leave the action nothing to decide of what `match` matches.
bool covers(const Earlier& earlier, const Match& match, Subject subject) {
  switch (subject) {
  case Subject::region:
    return regions_covered(earlier, match);
  case Subject::queue_pair:
    return queue_pairs_covered(earlier, match);
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
