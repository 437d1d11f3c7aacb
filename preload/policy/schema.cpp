// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "policy/schema.h"

#include "policy/backends.h"
#include "policy/embedded.h"
#include "policy/format.h"
#include "policy/suggest.h"

#include <algorithm>
#include <cmath>

namespace adverb::policy {
namespace {

std::string_view type_of(const Json& value) {
  if (value.is_number())
    return value.is_number_float() && value.get<double>() != std::floor(value.get<double>())
               ? "number"
               : "integer";
  return value.type_name(); // "object", "array", "string", "boolean", "null"
}

std::string_view noun_of(std::string_view type) {
  static constexpr std::pair<std::string_view, std::string_view> nouns[] = {
      {"object", "an object"},   {"array", "a list"},    {"string", "a string"},
      {"integer", "an integer"}, {"number", "a number"}, {"boolean", "true or false"},
      {"null", "null"},
  };
  for (const auto& [name, noun] : nouns)
    if (name == type)
      return noun;
  return type;
}

// What the file holds, short enough for a message.
std::string got(const Json& value) {
  if (value.is_string())
    return in_quotes(value.get_ref<const std::string&>());
  if (value.is_object() || value.is_array())
    return std::string(noun_of(type_of(value)));
  return value.dump();
}

std::vector<std::string_view> strings(const Json& list) {
  std::vector<std::string_view> result;
  for (const Json& entry : list)
    result.push_back(entry.get_ref<const std::string&>());
  return result;
}

std::vector<std::string_view> keys(const Json& object) {
  std::vector<std::string_view> result;
  for (const auto& member : object.items())
    if (!member.key().starts_with('$'))
      result.push_back(member.key());
  return result;
}

bool allows_type(const Json& part, std::string_view type) {
  const auto wanted = part.find("type");
  if (wanted == part.end())
    return true;
  return wanted->is_array() ? std::ranges::find(*wanted, Json(type)) != wanted->end()
                            : *wanted == type;
}

// "a size such as …", "one of …", "a string or a list": what a part of the schema stands for.
std::string expectation(const Json& part) {
  if (const auto options = part.find("oneOf"); options != part.end()) {
    std::string phrase;
    for (const Json& option : *options)
      phrase += (phrase.empty() ? "" : " or ") + expectation(resolved(option));
    return phrase;
  }
  if (const auto words = part.find("enum"); words != part.end())
    return quoted_list(strings(*words), "or");
  if (const auto format = part.find("format"); format != part.end())
    if (const Format* known = find_format(format->get_ref<const std::string&>()))
      return std::string(known->noun);
  const auto type = part.find("type");
  if (type == part.end())
    return "something else";
  if (type->is_string())
    return std::string(noun_of(type->get_ref<const std::string&>()));
  std::string phrase;
  for (std::string_view name : strings(*type))
    phrase += (phrase.empty() ? "" : " or ") + std::string(noun_of(name));
  return phrase;
}

class Validator {
public:
  Validator(const std::string& file, std::vector<Error>& errors) : file_(file), errors_(errors) {}

  void check(const Json& value, const Json& part, const std::string& pointer);

private:
  void check_string(const Json& value, const Json& part, const std::string& pointer);
  void check_format(const std::string& text, const Json& part, const std::string& pointer);
  void check_number(const Json& value, const Json& part, const std::string& pointer);
  void check_array(const Json& value, const Json& part, const std::string& pointer);
  void check_object(const Json& value, const Json& part, const std::string& pointer);
  void check_word(const Json& value, const Json& part, const std::string& pointer);

  void error(const std::string& pointer, std::string reason, std::string remedy = {}) {
    errors_.push_back({file_, pointer, std::move(reason), std::move(remedy)});
  }

  const std::string& file_;
  std::vector<Error>& errors_;
};

void Validator::check(const Json& value, const Json& unresolved, const std::string& pointer) {
  const Json part = resolved(unresolved);
  const std::string_view type = type_of(value);
  if (const auto options = part.find("oneOf"); options != part.end()) {
    for (const Json& option : *options)
      if (allows_type(resolved(option), type))
        return check(value, option, pointer);
    return error(pointer, "expected " + expectation(part) + ", got " + got(value));
  }
  if (const auto constant = part.find("const"); constant != part.end()) {
    if (value != *constant)
      error(pointer, "expected " + constant->dump() + ", got " + got(value));
    return;
  }
  if (part.contains("enum"))
    return check_word(value, part, pointer);
  if (!allows_type(part, type)) {
    // A plain number where a size or duration belongs is the commonest slip.
    std::string remedy;
    if (const auto name = part.find("format"); name != part.end() && value.is_number_unsigned())
      if (const Format* format = find_format(name->get_ref<const std::string&>()))
        if (const std::string text = format->suggestion(value.dump()); !text.empty())
          remedy = "did you mean " + in_quotes(text) + "?";
    return error(pointer, "expected " + expectation(part) + ", got " + got(value), remedy);
  }
  if (value.is_string())
    check_string(value, part, pointer);
  else if (value.is_number())
    check_number(value, part, pointer);
  else if (value.is_array())
    check_array(value, part, pointer);
  else if (value.is_object())
    check_object(value, part, pointer);
}

void Validator::check_word(const Json& value, const Json& part, const std::string& pointer) {
  const Json& words = part["enum"];
  if (std::ranges::find(words, value) != words.end())
    return;
  const std::vector<std::string_view> known = strings(words);
  if (!value.is_string())
    return error(pointer, "expected " + quoted_list(known, "or") + ", got " + got(value));
  if (const auto later = part.find("x-later"); later != part.end())
    if (std::ranges::find(*later, value) != later->end())
      return error(pointer, got(value) + " is not available in this version of adverb",
                   "use " + quoted_list(known, "or"));
  const std::string_view near = nearest(value.get_ref<const std::string&>(), known);
  error(pointer, "expected " + quoted_list(known, "or") + ", got " + got(value),
        near.empty() ? "" : "did you mean " + in_quotes(near) + "?");
}

void Validator::check_string(const Json& value, const Json& part, const std::string& pointer) {
  const auto& text = value.get_ref<const std::string&>();
  if (text.size() < part.value("minLength", size_t{0}))
    return error(pointer, "must not be empty");
  if (text.size() > part.value("maxLength", text.size()))
    return error(pointer, "longer than " + part["maxLength"].dump() + " bytes");
  if (part.contains("format"))
    check_format(text, part, pointer);
}

void Validator::check_format(const std::string& text, const Json& part,
                             const std::string& pointer) {
  const Format* format = find_format(part["format"].get_ref<const std::string&>());
  if (format == nullptr)
    return;
  if (!format->valid(text)) {
    std::string meant = format->suggestion(text);
    if (!meant.empty())
      meant = "did you mean " + in_quotes(meant) + "?";
    return error(pointer, "expected " + std::string(format->noun) + ", got " + in_quotes(text),
                 meant);
  }
  if (format->measure == nullptr)
    return;
  const auto bound = [&](const char* key) {
    return part.contains(key) ? format->measure(part[key].get_ref<const std::string&>())
                              : std::nullopt;
  };
  const auto measured = format->measure(text);
  if (!measured) // a word that stands for an amount
    return;
  if (const auto least = bound("x-minimum"); least && *measured < *least)
    error(pointer, in_quotes(text) + " is too small",
          "the least is " + part["x-minimum"].get<std::string>());
  if (const auto most = bound("x-maximum"); most && *measured > *most)
    error(pointer, in_quotes(text) + " is too large",
          "the most is " + part["x-maximum"].get<std::string>());
}

void Validator::check_number(const Json& value, const Json& part, const std::string& pointer) {
  const auto number = value.get<double>();
  if ((part.contains("minimum") && number < part["minimum"].get<double>()) ||
      (part.contains("maximum") && number > part["maximum"].get<double>()))
    error(pointer, "expected " + expectation(part) + " from " + part["minimum"].dump() + " to " +
                       part["maximum"].dump() + ", got " + got(value));
}

void Validator::check_array(const Json& value, const Json& part, const std::string& pointer) {
  if (value.size() < part.value("minItems", size_t{0}))
    return error(pointer, "the list is empty", "add an entry or remove the key");
  if (value.size() > part.value("maxItems", value.size()))
    return error(pointer, "more than " + part["maxItems"].dump() + " entries");
  const bool unique = part.value("uniqueItems", false);
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string where = child_pointer(pointer, std::to_string(i));
    if (part.contains("items"))
      check(value[i], part["items"], where);
    if (unique && std::find(value.begin(), value.begin() + static_cast<ptrdiff_t>(i), value[i]) !=
                      value.begin() + static_cast<ptrdiff_t>(i))
      error(where, got(value[i]) + " is given twice", "remove one of them");
  }
}

void Validator::check_object(const Json& value, const Json& part, const std::string& pointer) {
  static const Json nothing = Json::object();
  const Json& known = part.contains("properties") ? part["properties"] : nothing;
  for (const auto& member : value.items()) {
    const std::string where = child_pointer(pointer, member.key());
    if (part.contains("propertyNames"))
      check(member.key(), part["propertyNames"], where);
    if (known.contains(member.key()))
      check(member.value(), known[member.key()], where);
    else if (part.contains("additionalProperties") && part["additionalProperties"].is_object())
      check(member.value(), part["additionalProperties"], where);
    else
      error(where, "unknown key " + in_quotes(member.key()),
            did_you_mean(member.key(), keys(known), "the keys here are"));
  }
  if (!part.contains("required"))
    return;
  for (std::string_view key : strings(part["required"]))
    if (!value.contains(key))
      error(child_pointer(pointer, key), "the key " + in_quotes(key) + " is missing",
            known[std::string(key)].contains("const")
                ? "add \"" + std::string(key) + "\": " + known[std::string(key)]["const"].dump()
                : "add it");
}

} // namespace

const Json& schema() {
  static const Json& parsed = *[] {
    auto* result = new Json(Json::parse(embedded_schema));
    // The words are those of the backends this binary has, whatever the file says.
    Json& words = (*result)["definitions"]["rule"]["properties"]["register"]["enum"];
    words = backend_names();
    return result;
  }();
  return parsed;
}

Json resolved(const Json& part) {
  const auto reference = part.find("$ref");
  if (reference == part.end())
    return part;
  // "#/definitions/NAME" is a JSON pointer behind the '#'.
  Json result =
      resolved(schema().at(Json::json_pointer(reference->get_ref<const std::string&>().substr(1))));
  for (const auto& member : part.items())
    if (member.key() != "$ref")
      result[member.key()] = member.value();
  return result;
}

Takes takes(const Json& part) {
  const std::string when = part.value("x-reload", "now");
  return when == "restart" ? Takes::restart : when == "new" ? Takes::new_objects : Takes::now;
}

bool validate(const Json& document, const std::string& file, std::vector<Error>& errors) {
  // A file of another version would only earn errors about keys that are right in its own.
  const Json& version = schema()["properties"]["version"]["const"];
  if (document.is_object() && document.contains("version") && document["version"] != version) {
    errors.push_back({file, "/version",
                      "expected " + version.dump() + ", got " + got(document["version"]),
                      "this adverb reads policies of version " + version.dump() + " only"});
    return false;
  }
  Validator(file, errors).check(document, schema(), "");
  return true;
}

} // namespace adverb::policy
