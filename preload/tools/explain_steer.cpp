// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Who carries requests to pinned regions of peers, in the order in which the rules are asked.
#include "policy/format.h"
#include "policy/rule.h"
#include "policy/suggest.h"
#include "tools/explain.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

namespace adverb::tools {
namespace {

using policy::Policy;
using policy::Requests;
using policy::Rule;
using policy::Steer;

constexpr struct {
  const char* name;
  int type; // enum ibv_qp_type
} connected[] = {{"RC", 2}, {"UC", 3}};

std::string opcode_words(policy::OpcodeSet opcodes) {
  if (opcodes == policy::any_opcode)
    return "WRITE, READ";
  return opcodes == policy::set_of(policy::Opcode::write) ? "WRITE" : "READ";
}

std::string length_words(const Requests& requests) {
  std::string result;
  if (requests.min_length > 0)
    result += " from " + policy::size_text(requests.min_length);
  if (requests.max_length != Requests{}.max_length)
    result += " up to " + policy::size_text(requests.max_length);
  return result;
}

std::string hexadecimal(uint64_t address) {
  char text[2 + 16 + 1];
  snprintf(text, sizeof(text), "0x%" PRIx64, address);
  return text;
}

std::string address_words(const Requests& requests) {
  const bool first = requests.from != Requests{}.from, last = requests.to != Requests{}.to;
  if (!first && !last)
    return "";
  return " at addresses" + (first ? " from " + hexadecimal(requests.from) : "") +
         (last ? " to " + hexadecimal(requests.to) : "");
}

std::string carrier(Steer steer) {
  switch (steer) {
  case Steer::offload:
    return "the NIC";
  case Steer::unload:
    return "the owner's CPU";
  case Steer::automatic:
    break;
  }
  return "the NIC or the owner's CPU, by measurement";
}

std::string rule_words(const Policy& policy, const policy::SteerRule& rule, bool first) {
  const Requests& requests = rule.requests;
  const std::string which =
      requests == Requests{}
          ? (first ? "all" : "all others")
          : opcode_words(requests.opcodes) + length_words(requests) + address_words(requests);
  const policy::Rule& by = policy.rules()[rule.rule];
  const bool measured = !by.steer && by.reliability == policy::Reliability::automatic;
  return "    " + which + ": " +
         (measured ? "the owner's CPU while the path is far and lossy, otherwise the NIC"
                   : carrier(rule.steer)) +
         " (by rule " + policy::in_quotes(by.name) + ")\n";
}

// One line for each rule, and one for requests that no rule matches.
std::string steering_words(const Policy& policy, const policy::QpQuery& query) {
  if (policy.ask<&Rule::peers>(query) == policy::Peers::none)
    return "    all: the NIC (the peer is not asked if it runs adverb)\n";
  std::string result;
  const auto rules = policy.steering(query);
  for (const policy::SteerRule& rule : rules)
    result += rule_words(policy, rule, &rule == &rules.front());
  const bool all = !rules.empty() && rules.back().requests == Requests{};
  if (all)
    return result;
  return result + (rules.empty() ? "    all" : "    all others") +
         ": the NIC (no rule says otherwise)\n";
}

} // namespace

void print_steering(const Policy& policy, const std::string& device, const std::string& whose,
                    const in6_addr& peer) {
  const auto steers = [](const policy::Rule& rule) {
    return rule.steer.has_value() ||
           rule.reliability.value_or(policy::Reliability::device) != policy::Reliability::device;
  };
  if (std::ranges::none_of(policy.rules(), steers))
    return;
  std::vector<std::string> words;
  for (const auto& qp : connected)
    words.push_back(steering_words(policy, {device, qp.type, &peer}));
  if (words[0] == words[1]) {
    printf("  requests to pinned regions%s\n%s", whose.c_str(), words[0].c_str());
    return;
  }
  for (size_t i = 0; i < words.size(); ++i)
    printf("  requests of %s to pinned regions%s\n%s", connected[i].name, whose.c_str(),
           words[i].c_str());
}

} // namespace adverb::tools
