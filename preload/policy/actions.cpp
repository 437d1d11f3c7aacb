// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "policy/actions.h"

#include "policy/format.h"
#include "policy/words.h"

namespace adverb::policy {
namespace {

constexpr Word<Peers> peers_words[] = {
    {"auto", Peers::automatic, "the peer is asked if it runs adverb"},
    {"none", Peers::none, "remote operations pass through"}};
constexpr Word<Order> order_words[] = {{"strict", Order::strict, "order strict"},
                                       {"relaxed", Order::relaxed, "order relaxed"}};
constexpr Word<Reliability> reliability_words[] = {
    {"device", Reliability::device},
    {"software", Reliability::software,
     "losses of requests to the peer's CPU made good in software"},
    {"auto", Reliability::automatic,
     "losses of requests to the peer's CPU made good in software while the path is far and lossy"}};
constexpr Word<Steer> steer_words[] = {
    {"offload", Steer::offload}, {"unload", Steer::unload}, {"auto", Steer::automatic}};

template <auto member> bool is_set(const Rule& rule) {
  return static_cast<bool>(rule.*member);
}

// An action whose value is one of a few words.
template <auto member, const auto& words> void read_word(Rule& rule, std::string_view value) {
  rule.*member = word_named<words>(value).value;
}

template <auto member, const auto& words> std::string name_of(const Rule& rule) {
  return std::string(word_of<words>(*(rule.*member)).name);
}

template <auto member, const auto& words>
std::string_view answer_of(const Policy& policy, const QpQuery& query) {
  return word_of<words>(policy.ask<member>(query)).told;
}

template <auto member, const auto& words>
constexpr Action choice(std::string_view key, Subject subject) {
  return {key,
          subject,
          read_word<member, words>,
          is_set<member>,
          name_of<member, words>,
          subject == Subject::queue_pair ? answer_of<member, words> : nullptr};
}

// The words of "register" are a list of their own; a word without a row leaves null.
void read_backend(Rule& rule, std::string_view value) {
  rule.backend = find_backend(value);
}

std::string backend_name(const Rule& rule) {
  return std::string(rule.backend->name);
}

void read_copy_below(Rule& rule, std::string_view value) {
  rule.copy_below = parse_size(value);
}

std::string copy_below_text(const Rule& rule) {
  return size_text(*rule.copy_below);
}

constexpr Action action_rows[] = {
    {"register", Subject::region, read_backend, is_set<&Rule::backend>, backend_name, nullptr},
    choice<&Rule::peers, peers_words>("peers", Subject::queue_pair),
    choice<&Rule::order, order_words>("order", Subject::queue_pair),
    {"copy_below", Subject::device, read_copy_below, is_set<&Rule::copy_below>, copy_below_text,
     nullptr},
    choice<&Rule::steer, steer_words>("steer", Subject::request),
    choice<&Rule::reliability, reliability_words>("reliability", Subject::queue_pair),
};

} // namespace

constinit const std::span<const Action> actions = action_rows;

} // namespace adverb::policy
