// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The schema is the one source of truth: the code knows every word of it, agrees with its patterns
// and defaults, and what adverb brings along obeys it.
#include "catch.h"

#include "policy/actions.h"
#include "policy/backends.h"
#include "policy/compile.h"
#include "policy/embedded.h"
#include "policy/format.h"
#include "policy/policy.h"
#include "policy/rule.h"
#include "policy/schema.h"
#include "policy/setting_rows.h"
#include "policy/suggest.h"

#include <algorithm>
#include <regex>
#include <set>

using namespace adverb::policy;

namespace {

// Calls `visit` for every part of the schema that describes a value.
template <typename Visit> void walk(const Json& part, const std::string& pointer, Visit&& visit) {
  visit(part, pointer);
  for (const char* group : {"properties", "definitions"})
    if (part.contains(group))
      for (const auto& member : part[group].items())
        walk(member.value(), pointer + "/" + group + "/" + member.key(), visit);
  for (const char* single : {"items", "propertyNames", "additionalProperties"})
    if (part.contains(single) && part[single].is_object())
      walk(part[single], pointer + "/" + single, visit);
  if (part.contains("oneOf"))
    for (const Json& option : part["oneOf"])
      walk(option, pointer + "/oneOf", visit);
}

} // namespace

TEST_CASE("the schema uses only keywords that the validator obeys") {
  const std::set<std::string> known = {
      // obeyed
      "$ref", "additionalProperties", "const", "enum", "format", "items", "maxItems", "maxLength",
      "maximum", "minItems", "minLength", "minimum", "oneOf", "properties", "propertyNames",
      "required", "type", "uniqueItems", "x-action", "x-actions", "x-later", "x-maximum",
      "x-minimum", "x-reload",
      // for readers and other tools
      "$comment", "$id", "$schema", "default", "definitions", "description", "pattern", "title"};
  walk(schema(), "", [&](const Json& part, const std::string& pointer) {
    for (const auto& member : part.items()) {
      INFO(pointer << "/" << member.key());
      CHECK(known.count(member.key()) == 1);
    }
    // "expected … from MINIMUM to MAXIMUM" needs both.
    CHECK(part.contains("minimum") == part.contains("maximum"));
  });
}

TEST_CASE("every setting and action says when a change of it takes effect") {
  const auto says = [](const Json& part, const std::string& name) {
    INFO(name);
    const std::string when = part.value("x-reload", "");
    CHECK((when == "now" || when == "new" || when == "restart"));
  };
  const std::set<std::string> neither = {"$schema", "$comment", "version", "description", "rules"};
  for (const auto& setting : schema()["properties"].items())
    if (!neither.contains(setting.key()))
      says(setting.value(), setting.key());
  for (const auto& key : schema()["definitions"]["rule"]["properties"].items())
    if (key.value().value("x-action", false))
      says(key.value(), key.key());
}

TEST_CASE("every object of the schema is closed and allows comments") {
  walk(schema(), "", [](const Json& part, const std::string& pointer) {
    if (part.value("type", Json()) != "object" || !part.contains("properties"))
      return;
    INFO(pointer);
    CHECK(part["additionalProperties"] == false);
    CHECK(part["properties"].contains("$comment"));
  });
}

TEST_CASE("every key has a description") {
  walk(schema(), "", [](const Json& part, const std::string& pointer) {
    if (part.contains("properties"))
      for (const auto& member : part["properties"].items()) {
        INFO(pointer << "/" << member.key());
        CHECK(resolved(member.value()).contains("description"));
      }
  });
}

TEST_CASE("patterns and formats of the schema agree") {
  const std::vector<std::string> samples = {"0B",      "64KiB",      "64kb",
                                            "64",      "08KiB",      "1TiB",
                                            "1PiB",    "-1B",        " 1B",
                                            "1B ",     "",           "1ms",
                                            "200ms",   "0ms",        "1s",
                                            "ms",      "10.0.0.0/8", "10.0.0.0",
                                            "::1/128", "::/0",       "10.0.0.0/",
                                            "node",    "fe80::1",    "::ffff:10.0.0.1",
                                            "lid:7",   "lid:",       "guid:0002c90300001234",
                                            "guid:",   "/a",         "a",
                                            "/a\nb",   "/",          "0x7f00",
                                            "0X1",     "0x",         "0xFFFFFFFFFFFFFFFF"};
  size_t checked = 0;
  walk(schema(), "", [&](const Json& part, const std::string& pointer) {
    if (!part.contains("format"))
      return;
    const Format* format = find_format(part["format"].get<std::string>());
    INFO(pointer);
    REQUIRE(format != nullptr);
    REQUIRE(part.contains("pattern"));
    const std::regex pattern(part["pattern"].get<std::string>());
    for (const std::string& sample : samples) {
      INFO(sample);
      // A pattern may allow more than the format, never less: editors must not refuse what is
      // right.
      if (format->valid(sample) && sample != "0ms")
        CHECK(std::regex_match(sample, pattern));
    }
    ++checked;
  });
  CHECK(checked >= 7);
}

TEST_CASE("each setting of the schema with a default has a row, and its default is the code's") {
  const Json& properties = schema()["properties"];
  std::vector<std::string> rows, keys;
  for (const SettingRow& row : setting_rows)
    rows.push_back(row.name());
  for (const auto& member : properties.items()) {
    if (resolved(member.value()).contains("default"))
      keys.push_back(member.key());
    if (member.value().contains("properties"))
      for (const auto& inner : member.value()["properties"].items())
        if (resolved(inner.value()).contains("default"))
          keys.push_back(member.key() + "." + inner.key());
  }
  for (const std::string& key : keys) {
    INFO(key);
    CHECK(std::ranges::count(rows, key) == 1);
  }
  for (const SettingRow& row : setting_rows) {
    INFO(row.name());
    const Json& holder =
        row.group.empty() ? properties : properties[std::string(row.group)]["properties"];
    REQUIRE(holder.contains(std::string(row.key)));
    const Json& part = resolved(holder[std::string(row.key)]);
    const Settings before;
    Settings settings;
    if (!part.contains("default")) {
      CHECK(row.name() == "log.file"); // stderr has no path
      continue;
    }
    row.read(settings, part["default"]);
    CHECK(row.text(settings) == row.text(before));
  }
}

TEST_CASE("each setting that a file gives is told") {
  for (const SettingRow& row : setting_rows) {
    INFO(row.name());
    bool told = false;
    for (const char* value : {"false", "7", R"("off")", R"("all")", R"("process")", R"("1MiB")",
                              R"("7ms")", R"("/a")"}) {
      Json file = {{"version", 1}, {"rules", Json::array()}};
      Json& holder = row.group.empty() ? file : file[std::string(row.group)];
      holder[std::string(row.key)] = Json::parse(value);
      const Loaded loaded = load_text(file.dump(), "a file");
      told |= loaded && row.text(loaded.policy->settings()) != row.text(Settings{});
    }
    CHECK(told);
  }
}

TEST_CASE("the actions of the schema are the rows of the code, and read back as they are written") {
  std::vector<std::string> keys;
  for (const auto& member : schema()["definitions"]["rule"]["properties"].items())
    if (member.value().contains("x-action"))
      keys.push_back(member.key());
  REQUIRE(keys.size() == actions.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    CHECK(actions[i].key == keys[i]);
    const Json& part = schema()["definitions"]["rule"]["properties"][keys[i]];
    for (const Json& word : part.value("enum", Json{"4KiB"})) {
      INFO(keys[i] << " " << word);
      Rule rule;
      CHECK_FALSE(actions[i].set(rule));
      actions[i].read(rule, word.get<std::string>());
      REQUIRE(actions[i].set(rule));
      CHECK(actions[i].value(rule) == word.get<std::string>());
    }
  }
}

TEST_CASE("the schema's file names the backends there are, in its words and to people") {
  const Json file = Json::parse(embedded_schema);
  const Json& part = file["definitions"]["rule"]["properties"]["register"];
  CHECK(part["enum"] == Json(backend_names()));
  CHECK(part["description"] == describe_backends()); // and so the man page
  for (const Json& later : part.value("x-later", Json::array()))
    CHECK(find_backend(later.get<std::string>()) == nullptr);
  // The first row stands for what a device does by itself.
  CHECK_FALSE(stock_backend().unpins);
  CHECK_FALSE(stock_backend().lends);
}

TEST_CASE("a word that names no backend is an error that lists those there are, never a default") {
  for (const char* word : {"none ", "None", "pin", "", "x"}) {
    INFO(word);
    const Json document = {{"version", 1}, {"rules", Json::array({{{"register", word}}})}};
    const Loaded loaded = load_text(document.dump(), "f", "/p");
    CHECK_FALSE(loaded);
    REQUIRE(loaded.errors.size() == 1);
    CHECK(loaded.errors[0].reason.find(
              "\"pinned\", \"none\", \"elastic\", \"odp\", \"np\" or \"auto\"") !=
          std::string::npos);
    std::vector<Error> errors; // even if a schema let it pass
    compile(document, "f", errors);
    REQUIRE(errors.size() == 1);
    CHECK(errors[0].remedy == "use \"pinned\", \"none\", \"elastic\", \"odp\", \"np\" or \"auto\"");
  }
}

TEST_CASE("every embedded profile is valid, described and commented") {
  for (std::string_view name : profile_names()) {
    INFO(name);
    const Loaded loaded = load_profile(name, "/usr/bin/prog");
    for (const Error& error : loaded.errors)
      UNSCOPED_INFO(error.text());
    REQUIRE(loaded);
    CHECK_FALSE(loaded.policy->description().empty());
    CHECK(loaded.policy->source() == "profile " + std::string(name));
  }
  for (const EmbeddedProfile& profile : embedded_profiles)
    CHECK(profile.text.find("$comment") != profile.text.npos);
}

TEST_CASE("the shipped default unpins local-only regions and no other") {
  const Loaded loaded = load_text(embedded_default, "built-in default", "/usr/bin/prog");
  REQUIRE(loaded);
  const Policy& policy = *loaded.policy;
  CHECK(policy.region({"d", 1u << 20, 1}).name == "none");
  for (unsigned access : {2u, 4u, 8u, 15u})
    CHECK(policy.region({"d", 1u << 20, access}).name == "pinned");
  CHECK(policy.ask<&Rule::peers>({"d", 2}) == Peers::automatic);
}

TEST_CASE("the profile unpinned pins nothing, off changes nothing, local-only asks nobody") {
  const auto unpinned = load_profile("unpinned", "/p");
  for (unsigned access : {0u, 1u, 2u, 4u, 8u, 15u})
    CHECK(unpinned.policy->region({"d", 1, access}).unpins);
  CHECK(load_profile("off", "/p").policy->idle());
  const auto local = load_profile("local-only", "/p");
  CHECK(local.policy->ask<&Rule::peers>({"d", 2}) == Peers::none);
  CHECK(local.policy->region({"d", 1, 1}).name == "none");
  CHECK(local.policy->region({"d", 1, 2}).name == "pinned");
}

TEST_CASE("sizes, ranges and addresses read back as they are written") {
  for (const char* text : {"0B", "1B", "1023B", "1KiB", "1025B", "3MiB", "1GiB", "5TiB"})
    CHECK(size_text(*parse_size(text)) == text);
  for (const char* text :
       {"10.0.0.0/8", "0.0.0.0/0", "10.1.2.3/32", "::/0", "fe80::/10", "::1/128"})
    CHECK(cidr_text(*parse_cidr(text)) == text);
  CHECK(address_text(*parse_address("::ffff:10.0.0.1")) == "10.0.0.1");
}

TEST_CASE("suggestions are near words only") {
  const std::string_view words[] = {"register", "peers", "order", "copy_below"};
  CHECK(nearest("regsiter", words) == "register");
  CHECK(nearest("PEERS", words) == "peers");
  CHECK(nearest("oder", words) == "order");
  CHECK(nearest("zebra", words).empty());
  CHECK(nearest("", words).empty());
  CHECK(nearest(std::string(10000, 'x'), words).empty());
}
