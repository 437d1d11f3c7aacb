// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "tools/explain.h"

#include "memory/module_file.h"
#include "policy/actions.h"
#include "policy/format.h"
#include "policy/rule.h"
#include "policy/setting_rows.h"
#include "policy/suggest.h"
#include "tools/commands.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <set>
#include <unistd.h>

namespace adverb::tools {
namespace {

using policy::Policy;
using policy::Rule;

// The combinations of rights a region can have, as a person names them: the access bits are those
// of the verbs (REMOTE_WRITE 2, REMOTE_READ 4, REMOTE_ATOMIC 8).
constexpr struct {
  const char* name;
  unsigned access;
} rights[] = {
    {"local only", 0},          {"remote write", 2},       {"remote read", 4},
    {"remote atomic", 8},       {"remote write+read", 6},  {"remote write+atomic", 10},
    {"remote read+atomic", 12}, {"all remote rights", 14},
};

constexpr struct {
  const char* name;
  int type; // enum ibv_qp_type
} qp_types[] = {{"RC", 2}, {"UC", 3}, {"UD", 4}};

// The policy counts which rule decides; asking and looking at what moved names it.
class Asked {
public:
  explicit Asked(const Policy& policy) : policy_(policy), before_(policy.hits()) {}

  std::string rule() const {
    const auto after = policy_.hits();
    for (size_t i = 0; i < after.size(); ++i)
      if (after[i].hits != before_[i].hits)
        return "by rule " + policy::in_quotes(after[i].name);
    return "no rule says otherwise";
  }

private:
  const Policy& policy_;
  std::vector<policy::RuleHits> before_;
};

std::string joined(const std::vector<std::string>& words) {
  std::string result;
  for (const std::string& word : words)
    result += (result.empty() ? "" : ", ") + word;
  return result;
}

std::string rule_actions(const Rule& rule) {
  std::vector<std::string> words;
  for (const policy::Action& action : policy::actions)
    if (action.set(rule))
      words.push_back(std::string(action.key) + " " + action.value(rule));
  return joined(words);
}

void print_rules(const Policy& policy) {
  puts("rules that can match this program, first to last");
  for (const Rule& rule : policy.rules())
    printf("  /rules/%zu %s: %s\n", rule.index, policy::in_quotes(rule.name).c_str(),
           rule_actions(rule).c_str());
  if (policy.rules().empty())
    puts("  none");
}

// Names that stand for every group of devices the rules tell apart. A pattern matches itself.
std::vector<std::string> devices(const Policy& policy) {
  std::set<std::string> names;
  for (const Rule& rule : policy.rules())
    for (const std::string& pattern : rule.match.devices)
      if (pattern != "*")
        names.insert(pattern);
  std::vector<std::string> result(names.begin(), names.end());
  result.emplace_back(); // any other
  return result;
}

// The lengths at which some rule starts to match or stops: regions between two are treated alike.
std::vector<uint64_t> borders(const Policy& policy) {
  std::set<uint64_t> lengths = {0};
  for (const Rule& rule : policy.rules()) {
    lengths.insert(rule.match.min_size);
    if (rule.match.max_size != policy::Match{}.max_size)
      lengths.insert(rule.match.max_size + 1);
  }
  return {lengths.begin(), lengths.end()};
}

struct Line {
  std::vector<std::string> subjects;
  std::string verdict;
};

// Subjects with the same verdict share a line.
void add(std::vector<Line>& lines, const std::string& subject, const std::string& verdict) {
  const auto same = std::ranges::find(lines, verdict, &Line::verdict);
  if (same == lines.end())
    lines.push_back({{subject}, verdict});
  else if (same->subjects.empty() || same->subjects.back() != subject)
    same->subjects.push_back(subject);
}

void print(const std::vector<Line>& lines, size_t everything) {
  for (const Line& line : lines)
    printf("    %s: %s\n",
           line.subjects.size() == everything ? "all" : joined(line.subjects).c_str(),
           line.verdict.c_str());
}

bool is_round(uint64_t bytes) {
  return bytes % 1024 == 0;
}

// The lengths from `first` up to but without `next`, said with the round numbers of the policy.
std::string between(uint64_t first, std::optional<uint64_t> next) {
  std::string result;
  if (first > 0)
    result = is_round(first - 1) && first > 1 ? " above " + policy::size_text(first - 1)
                                              : " from " + policy::size_text(first);
  if (next)
    result += is_round(*next) ? " below " + policy::size_text(*next)
                              : " up to " + policy::size_text(*next - 1);
  return result;
}

// What this host has of that for which the backend needs adverb.ko.
std::string here(const policy::BackendTraits& backend) {
  if (backend.views == policy::Views::no)
    return {};
  std::string why;
  const int module = memory::open_module(why);
  if (module < 0)
    return "; here " + why;
  close(module);
  return "; here adverb.ko is loaded, and `adverb doctor` tries each device";
}

void print_regions(const Policy& policy, const std::string& device) {
  const std::vector<uint64_t> lengths = borders(policy);
  for (size_t i = 0; i < lengths.size(); ++i) {
    std::vector<Line> lines;
    for (const auto& right : rights) {
      const Asked asked(policy);
      const auto& backend = policy.region({device, lengths[i], right.access});
      add(lines, right.name,
          std::string(backend.verdict) + here(backend) + " (" + asked.rule() + ")");
    }
    for (Line& line : lines)
      if (line.subjects.size() + 1 == std::size(rights) && line.subjects[0] != rights[0].name)
        line.subjects = {"any remote right"};
    const bool last = i + 1 == lengths.size();
    printf("  regions%s\n",
           between(lengths[i], last ? std::nullopt : std::optional(lengths[i + 1])).c_str());
    print(lines, std::size(rights));
  }
}

// One answer per range of peers that the rules tell apart, and one for all other peers.
void print_queue_pairs(const Policy& policy, const std::string& device) {
  std::set<std::string> ranges;
  for (const Rule& rule : policy.rules())
    for (const policy::Cidr& range : rule.match.peers)
      ranges.insert(policy::cidr_text(range));
  std::vector<std::string> peers(ranges.begin(), ranges.end());
  peers.emplace_back();
  for (const std::string& peer : peers) {
    const in6_addr elsewhere{}; // the unspecified address: no peer has it
    const in6_addr address = peer.empty() ? elsewhere : policy::parse_cidr(peer)->address;
    std::vector<Line> lines;
    for (const auto& type : qp_types) {
      std::vector<std::string> answers;
      for (const policy::Action& action : policy::actions) {
        if (action.answer == nullptr)
          continue;
        const Asked asked(policy);
        const std::string answer(action.answer(policy, {device, type.type, &address}));
        if (!answer.empty())
          answers.push_back(answer + " (" + asked.rule() + ")");
      }
      add(lines, type.name, joined(answers));
    }
    const std::string whose = peers.size() == 1 ? ""
                              : peer.empty()    ? "other peers"
                                                : peer; // empty: any peer's
    printf("  queue pairs%s\n", whose.empty() ? "" : (" to " + whose).c_str());
    print(lines, std::size(qp_types));
    print_steering(policy, device, whose.empty() ? "" : " of " + whose, address);
  }
}

void print_link(const Policy& policy) {
  const policy::LinkSettings& link = policy.link();
  std::vector<std::string> allowed = {"this host"};
  for (const policy::Cidr& range : link.allow)
    allowed.push_back(policy::cidr_text(range));
  printf("link      allowed: %s; %s\n", link.allow.empty() ? "all hosts" : joined(allowed).c_str(),
         link.key.empty() ? "no key" : "peers must prove to hold the key, and each queue pair");
}

void print_settings(const Policy& policy) {
  puts("settings");
  for (const policy::SettingRow& row : policy::setting_rows)
    printf("  %-20s %s\n", row.name().c_str(), row.text(policy.settings()).c_str());
}

} // namespace

void print_explanation(const Policy& policy, const std::string& origin, const Program& program,
                       const std::string& device) {
  printf("policy    %s (%s)\n", policy.source().c_str(), origin.c_str());
  if (!policy.description().empty())
    printf("          %s\n", policy.description().c_str());
  printf("program   %s\n",
         program.executable.empty() ? program.path.c_str() : program.executable.c_str());
  if (program.status != status_ok)
    printf("          cannot be run under adverb: %s\n", program.reason.c_str());
  for (const std::string& note : program.warnings)
    printf("          note: %s\n", note.c_str());
  for (const std::string& note : program.notes)
    printf("          note: %s\n", note.c_str());
  print_rules(policy);
  if (policy.idle()) {
    puts("nothing is changed: every object is left to its provider");
    return;
  }
  for (const std::string& name : device.empty() ? devices(policy) : std::vector{device}) {
    if (!name.empty())
      printf("device %s\n", name.c_str());
    else
      puts(devices(policy).size() == 1 ? "every device" : "any other device");
    print_regions(policy, name);
    print_queue_pairs(policy, name);
    if (const auto below = policy.copy_below(name))
      printf("  local buffers below %s are copied, others get a window\n",
             policy::size_text(*below).c_str());
  }
  if (policy.strands_remote())
    printf("note: %s\n", stranded_note);
  print_link(policy);
  print_settings(policy);
  print_ways();
}

} // namespace adverb::tools
