// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "policy/compile.h"

#include "policy/actions.h"
#include "policy/format.h"
#include "policy/schema.h"
#include "policy/setting_rows.h"
#include "policy/suggest.h"

#include <algorithm>
#include <cstring>

namespace adverb::policy {
namespace {

// enum ibv_qp_type, an ABI this room does not include; test_policy_rules checks the numbers.
struct QpTypeName {
  std::string_view name;
  unsigned value;
};
constexpr QpTypeName qp_type_names[] = {{"RC", 2}, {"UC", 3}, {"UD", 4}};

struct RightsName {
  std::string_view name;
  RightsSet set;
};
// Bit N of a set stands for the combination N of write (1), read (2) and atomic (4).
constexpr RightsName rights_names[] = {
    {"local_only", 0b00000001},  {"remote", 0b11111110},        {"remote_write", 0b10101010},
    {"remote_read", 0b11001100}, {"remote_atomic", 0b11110000},
};

struct OpcodeName {
  std::string_view name;
  Opcode value;
};
constexpr OpcodeName opcode_names[] = {{"write", Opcode::write}, {"read", Opcode::read}};

const std::string& text(const Json& value) {
  return value.get_ref<const std::string&>();
}

// One string or a list of them.
std::vector<std::string> texts(const Json& value) {
  if (value.is_string())
    return {text(value)};
  std::vector<std::string> result;
  for (const Json& entry : value)
    result.push_back(text(entry));
  return result;
}

template <typename Named> auto value_of(const Named& names, std::string_view name) {
  return std::ranges::find(names, name, [](const auto& entry) { return entry.name; });
}

uint64_t memory_address(const Json& value) {
  return value.is_string() ? *parse_pointer(text(value)) : value.get<uint64_t>();
}

// What keys of `match` say of requests.
Requests compile_requests(const Json& match) {
  Requests result;
  if (match.contains("opcode")) {
    result.opcodes = 0;
    for (const std::string& opcode : texts(match["opcode"]))
      result.opcodes |= set_of(value_of(opcode_names, opcode)->value);
  }
  const Json length = match.value("length", Json::object());
  if (length.contains("min"))
    result.min_length = *parse_size(text(length["min"]));
  if (length.contains("max"))
    result.max_length = *parse_size(text(length["max"]));
  const Json range = match.value("remote_address", Json::object());
  if (range.contains("from"))
    result.from = memory_address(range["from"]);
  if (range.contains("to"))
    result.to = memory_address(range["to"]);
  return result;
}

Match compile_match(const Json& match) {
  Match result;
  if (match.contains("program"))
    result.programs = texts(match["program"]);
  if (match.contains("device"))
    result.devices = texts(match["device"]);
  if (match.contains("qp_type")) {
    result.qp_types = 0;
    for (const Json& type : match["qp_type"])
      result.qp_types |= 1u << value_of(qp_type_names, text(type))->value;
  }
  if (match.contains("access")) {
    result.rights = 0;
    for (const Json& right : match["access"])
      result.rights |= value_of(rights_names, text(right))->set;
  }
  if (match.contains("min_size"))
    result.min_size = *parse_size(text(match["min_size"]));
  if (match.contains("max_size"))
    result.max_size = *parse_size(text(match["max_size"]));
  if (match.contains("peer"))
    for (const std::string& range : texts(match["peer"]))
      result.peers.push_back(*parse_cidr(range));
  result.requests = compile_requests(match);
  return result;
}

Rule compile_rule(const Json& rule, size_t index) {
  Rule result;
  result.index = index;
  result.name = rule.contains("name") ? text(rule["name"]) : "rule " + std::to_string(index);
  if (rule.contains("match"))
    result.match = compile_match(rule["match"]);
  for (const Action& action : actions)
    if (rule.contains(action.key))
      action.read(result, text(rule[action.key])); // an unknown backend is an error, see check()
  return result;
}

std::vector<std::string_view> action_keys() {
  std::vector<std::string_view> result;
  for (const Action& action : actions)
    result.push_back(action.key);
  return result;
}

uint64_t amount(const Json& value) {
  const auto size = value.is_string() ? parse_size(text(value)) : std::nullopt;
  return size ? *size : memory_address(value);
}

std::string shown(const Json& value) {
  return value.is_string() ? in_quotes(text(value)) : value.dump();
}

// Why a key of `match` does not apply to an action, or what to use instead, before the remedy.
std::string_view reason_against(std::string_view key, std::string_view action) {
  if (key == "peer" && action == "register")
    return "a region is registered before its peers are known; ";
  if (key.ends_with("_size") && action == "steer")
    return "use \"length\" for the length of a request; ";
  if (key == "opcode" || key == "length" || key == "remote_address")
    return "only requests have it; ";
  return "";
}

class RuleChecker {
public:
  RuleChecker(const std::string& file, std::vector<Error>& errors)
      : file_(file), errors_(errors), keys_(action_keys()) {}

  // What the schema cannot say about one rule. `pointer` is where it is.
  void check(const Json& rule, const std::string& pointer) {
    std::vector<std::string_view> set;
    for (std::string_view action : keys_)
      if (rule.contains(action))
        set.push_back(action);
    if (set.empty())
      errors_.push_back(
          {file_, pointer, "the rule sets no action", "add one of " + quoted_list(keys_, "or")});
    if (rule.contains("register") && find_backend(text(rule["register"])) == nullptr)
      errors_.push_back({file_, pointer + "/register",
                         in_quotes(text(rule["register"])) + " is not a way to register regions",
                         "use " + quoted_list(backend_names(), "or")});
    if (!rule.contains("match"))
      return;
    const std::string at = pointer + "/match";
    const Json& match = rule["match"];
    for (const auto& member : match.items())
      check_applies(member.key(), set, pointer);
    check_bounds(match, "min_size", "max_size", at);
    if (match.contains("length"))
      check_bounds(match["length"], "min", "max", at + "/length");
    if (match.contains("remote_address"))
      check_bounds(match["remote_address"], "from", "to", at + "/remote_address");
    if (rule.contains("steer"))
      check_steerable(match, at);
  }

private:
  // `part` is an object with two bounds, of which either may be absent.
  void check_bounds(const Json& part, const char* low, const char* high,
                    const std::string& pointer) {
    if (part.contains(low) && part.contains(high) && amount(part[low]) > amount(part[high]))
      errors_.push_back({file_, child_pointer(pointer, low),
                         "the rule can never fire: " + std::string(low) + " " + shown(part[low]) +
                             " is above " + high + " " + shown(part[high]),
                         "swap them"});
  }

  // UD queue pairs have neither WRITE nor READ, and UC queue pairs have no READ.
  void check_steerable(const Json& match, const std::string& pointer) {
    if (!match.contains("qp_type"))
      return;
    const OpcodeSet wanted = compile_requests(match).opcodes;
    OpcodeSet possible = 0;
    for (const Json& type : match["qp_type"])
      possible |= type == "RC" ? any_opcode : type == "UC" ? set_of(Opcode::write) : OpcodeSet{};
    if ((wanted & possible) == 0)
      errors_.push_back({file_, child_pointer(pointer, "qp_type"),
                         "the rule can never fire: these queue pairs have no such requests",
                         "add \"RC\", or remove the key"});
  }

  // A key that has no meaning for one of the rule's actions would make that action never fire.
  void check_applies(const std::string& key, const std::vector<std::string_view>& set,
                     const std::string& pointer) {
    const Json& part = schema()["definitions"]["rule"]["properties"]["match"]["properties"][key];
    const auto applies = part.find("x-actions");
    if (applies == part.end())
      return;
    for (std::string_view action : set) {
      if (std::ranges::find(*applies, Json(action)) != applies->end())
        continue;
      const std::string why(reason_against(key, action));
      errors_.push_back(
          {file_, child_pointer(pointer + "/match", key),
           in_quotes(key) + " does not apply to the action " + in_quotes(action),
           why + "put " + in_quotes(action) + " into a rule without " + in_quotes(key)});
    }
  }

  const std::string& file_;
  std::vector<Error>& errors_;
  const std::vector<std::string_view> keys_; // of actions
};

bool has_error_below(const std::vector<Error>& errors, const std::string& pointer) {
  return std::ranges::any_of(errors, [&](const Error& error) {
    return error.pointer == pointer || error.pointer.starts_with(pointer + "/");
  });
}

void compile_peers(const Json& peers, LinkSettings& settings, const std::string& file,
                   std::vector<Error>& errors) {
  for (const auto& member : peers.items()) {
    LinkSettings::Mapping mapping = *parse_peer(member.key());
    mapping.address = *parse_address(text(member.value()));
    const auto same = [&](const LinkSettings::Mapping& other) {
      return other.by == mapping.by && other.key == mapping.key;
    };
    if (std::ranges::any_of(settings.mapped, same))
      errors.push_back({file, child_pointer("/link/peers", member.key()),
                        "the same peer is given twice in different spellings", "keep one of them"});
    settings.mapped.push_back(mapping);
  }
}

void compile_link(const Json& link, LinkSettings& settings, const std::string& file,
                  std::vector<Error>& errors) {
  if (link.contains("allow"))
    for (const Json& range : link["allow"])
      settings.allow.push_back(*parse_cidr(text(range)));
  if (link.contains("key_file"))
    settings.key = read_key(text(link["key_file"]), file, errors);
  if (link.contains("peers"))
    compile_peers(link["peers"], settings, file, errors);
}

// The document has the key, and its value no error.
bool is_usable(const Json& document, const std::string& key, const std::vector<Error>& errors) {
  return document.is_object() && document.contains(key) && !has_error_below(errors, "/" + key);
}

Settings compile_settings(const Json& document, const std::string& file,
                          std::vector<Error>& errors) {
  Settings result;
  const auto usable = [&](const char* key) { return is_usable(document, key, errors); };
  if (usable("link"))
    compile_link(document["link"], result.link, file, errors);
  for (const SettingRow& row : setting_rows) {
    const std::string key(row.key), group(row.group);
    if (!usable(group.empty() ? key.c_str() : group.c_str()))
      continue;
    const Json& holder = group.empty() ? document : document[group];
    if (holder.contains(key))
      row.read(result, holder[key]);
  }
  return result;
}

void check_names(const std::vector<Rule>& rules, const std::string& file,
                 std::vector<Error>& errors) {
  for (auto rule = rules.begin(); rule != rules.end(); ++rule) {
    const auto twin = std::find_if(rules.begin(), rule,
                                   [&](const Rule& earlier) { return earlier.name == rule->name; });
    if (twin != rule)
      errors.push_back(
          {file, "/rules/" + std::to_string(rule->index) + "/name",
           in_quotes(rule->name) + " is already the name of /rules/" + std::to_string(twin->index),
           "give each rule a name of its own"});
  }
}

} // namespace

Document compile(const Json& document, const std::string& file, std::vector<Error>& errors) {
  Document result;
  result.source = file;
  if (is_usable(document, "description", errors))
    result.description = text(document["description"]);
  result.settings = compile_settings(document, file, errors);
  const bool listed =
      std::ranges::none_of(errors, [](const Error& error) { return error.pointer == "/rules"; });
  if (!document.is_object() || !document.contains("rules") || !listed)
    return result;

  RuleChecker checker(file, errors);
  const Json& rules = document["rules"];
  for (size_t i = 0; i < rules.size(); ++i) {
    const std::string pointer = "/rules/" + std::to_string(i);
    if (has_error_below(errors, pointer))
      continue;
    checker.check(rules[i], pointer);
    result.rules.push_back(compile_rule(rules[i], i));
  }
  check_names(result.rules, file, errors);
  if (errors.empty())
    find_shadowed(result.rules, file, errors);
  return result;
}

} // namespace adverb::policy
