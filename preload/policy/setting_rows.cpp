// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "policy/setting_rows.h"

#include "policy/format.h"
#include "policy/words.h"

namespace adverb::policy {
namespace {

constexpr Word<LogLevel> level_words[] = {{"debug", LogLevel::debug},
                                          {"info", LogLevel::info},
                                          {"warn", LogLevel::warn},
                                          {"error", LogLevel::error},
                                          {"off", LogLevel::off}};
constexpr Word<Proof> proof_words[] = {{"others", Proof::others,
                                        "a peer proves each queue pair, except this user's "
                                        "and root's processes on this host if there is no key"},
                                       {"all", Proof::all, "a peer proves each queue pair"}};
constexpr Word<BrokerPlace> broker_words[] = {
    {"inside", BrokerPlace::inside, "in the first program that needs one"},
    {"process", BrokerPlace::process, "in a process of its own"}};

std::string text_in(const Json& value) {
  return value.get<std::string>();
}

template <const auto& words> auto value_of(const Json& value) {
  return word_named<words>(text_in(value)).value;
}

template <const auto& words> std::string told_of(const auto& value) {
  const auto& word = word_of<words>(value);
  return std::string(word.name) + (word.told.empty() ? "" : ": " + std::string(word.told));
}

std::string duration_text(std::chrono::milliseconds time) {
  return std::to_string(time.count()) + "ms";
}

std::chrono::milliseconds duration_in(const Json& value) {
  return std::chrono::milliseconds(*parse_duration(text_in(value)));
}

constexpr SettingRow rows[] = {
    {"log", "level",
     [](Settings& s, const Json& value) { s.log.level = value_of<level_words>(value); },
     [](const Settings& s) { return told_of<level_words>(s.log.level); }},
    {"log", "file", [](Settings& s, const Json& value) { s.log.file = text_in(value); },
     [](const Settings& s) { return s.log.file.empty() ? "stderr" : s.log.file; }},
    {"link", "port", [](Settings& s, const Json& value) { s.link.port = value.get<uint16_t>(); },
     [](const Settings& s) { return std::to_string(s.link.port); }},
    {"link", "hello_timeout",
     [](Settings& s, const Json& value) { s.link.hello_timeout = duration_in(value); },
     [](const Settings& s) { return duration_text(s.link.hello_timeout); }},
    {"link", "spin",
     [](Settings& s, const Json& value) {
       s.link.spin = std::chrono::microseconds(value.get<uint16_t>());
     },
     [](const Settings& s) { return std::to_string(s.link.spin.count()) + " microseconds"; }},
    {"link", "proof",
     [](Settings& s, const Json& value) { s.link.proof = value_of<proof_words>(value); },
     [](const Settings& s) { return told_of<proof_words>(s.link.proof); }},
    {"link", "broker",
     [](Settings& s, const Json& value) { s.link.broker = value_of<broker_words>(value); },
     [](const Settings& s) { return told_of<broker_words>(s.link.broker); }},
    {"", "staging", [](Settings& s, const Json& value) { s.staging = *parse_size(text_in(value)); },
     [](const Settings& s) { return size_text(s.staging); }},
    {"", "pinned_budget", // "auto" is no size
     [](Settings& s, const Json& value) { s.pinned_budget = parse_size(text_in(value)); },
     [](const Settings& s) {
       return s.pinned_budget ? size_text(*s.pinned_budget) : "auto: what the host has room for";
     }},
    {"", "recall_wait", [](Settings& s, const Json& value) { s.recall_wait = duration_in(value); },
     [](const Settings& s) { return duration_text(s.recall_wait); }},
    {"", "serve", [](Settings& s, const Json& value) { s.serve = value.get<bool>(); },
     [](const Settings& s) {
       return std::string(s.serve ? "true: the CPU carries peers' requests to pinned regions, if "
                                    "peers steer them to it"
                                  : "false: the CPU carries no request to a pinned region, the NIC "
                                    "carries all");
     }},
};

} // namespace

constinit const std::span<const SettingRow> setting_rows = rows;

std::string SettingRow::name() const {
  return (group.empty() ? "" : std::string(group) + ".") + std::string(key);
}

} // namespace adverb::policy
