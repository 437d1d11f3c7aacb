// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Where a policy comes from, and the one that this process obeys.
#include "policy/compile.h"
#include "policy/embedded.h"
#include "policy/glob.h"
#include "policy/schema.h"
#include "policy/source.h"
#include "policy/suggest.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <sys/auxv.h>
#include <unistd.h>

namespace adverb::policy {
namespace {

constexpr const char* system_policy = "/etc/adverb/policy.json";

std::string this_program() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : std::string();
}

bool rule_is_for(const Rule& rule, std::string_view program) {
  const auto& globs = rule.match.programs;
  return globs.empty() || std::ranges::any_of(globs, [&](const std::string& glob) {
           return program_matches(glob, program);
         });
}

Loaded failed(std::string file, std::string reason, std::string remedy) {
  Loaded result;
  result.errors.push_back({std::move(file), "", std::move(reason), std::move(remedy)});
  return result;
}

// The environment of a process with more rights than its caller is the caller's, not its own.
const char* trusted_environment(const char* name) {
  if (getauxval(AT_SECURE) != 0)
    return nullptr;
  const char* value = getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

// Where the user's own policy would be, or "".
std::string user_policy() {
  const char* config = trusted_environment("XDG_CONFIG_HOME");
  if (config != nullptr && *config == '/')
    return std::string(config) + "/adverb/policy.json";
  const char* home = trusted_environment("HOME");
  if (home != nullptr && *home == '/')
    return std::string(home) + "/.config/adverb/policy.json";
  return {};
}

// Loads the file unless there is none: then an empty result without errors.
Loaded load_if_present(const std::string& path, std::string_view program) {
  Refusal refusal;
  auto text = read_trusted(path, Secrecy::readable, max_text, refusal);
  if (text) {
    Loaded loaded = load_text(*text, path, program);
    loaded.path = path;
    loaded.text = std::move(*text);
    return loaded;
  }
  if (refusal.missing)
    return {};
  return failed(path, std::move(refusal.reason), std::move(refusal.remedy));
}

} // namespace

std::string Error::text() const {
  std::string result = file;
  if (!pointer.empty())
    result += (pointer.starts_with('/') ? ": " : ":") + pointer;
  result += ": " + reason;
  if (!remedy.empty())
    result += "; " + remedy;
  // Keys and file names may hold anything; a message must stay one harmless line.
  std::ranges::replace_if(
      result, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return result;
}

Loaded load_text(std::string_view text, std::string_view file, std::string_view program) {
  Loaded result;
  const std::string name(file);
  const std::string wanted = program.empty() ? this_program() : std::string(program);
  const Json document = read_json(text, name, result.errors);
  if (document.is_null() && !result.errors.empty())
    return result;
  if (!validate(document, name, result.errors))
    return result;
  Document compiled = compile(document, name, result.errors);
  if (!result.errors.empty())
    return result;
  std::erase_if(compiled.rules, [&](const Rule& rule) { return !rule_is_for(rule, wanted); });
  result.policy = std::make_unique<Policy>(std::move(compiled));
  return result;
}

Loaded load_file(const std::string& path, std::string_view program) {
  Loaded result = load_if_present(path, program);
  if (!result && result.errors.empty())
    return failed(path, "there is no such file", "");
  return result;
}

Loaded load_profile(std::string_view name, std::string_view program) {
  for (const EmbeddedProfile& profile : embedded_profiles)
    if (profile.name == name)
      return load_text(profile.text, "profile " + std::string(name), program);
  return failed("profile " + in_quotes(name), "there is no such profile",
                did_you_mean(name, profile_names(), "the profiles are"));
}

Loaded load_named(const std::string& named, std::string_view program) {
  const bool is_path = named.find('/') != named.npos || named.ends_with(".json");
  return is_path ? load_file(named, program) : load_profile(named, program);
}

Loaded load_for_program(std::string_view program) {
  if (const char* named = trusted_environment("ADVERB_POLICY"))
    return load_named(named, program);
  for (const std::string& path : {user_policy(), std::string(system_policy)}) {
    if (path.empty())
      continue;
    Loaded found = load_if_present(path, program);
    if (found || !found.errors.empty())
      return found;
  }
  return load_text(embedded_default, "built-in default", program);
}

Loaded load_for_this_process() {
  return load_for_program({});
}

std::vector<std::string_view> profile_names() {
  std::vector<std::string_view> names;
  for (const EmbeddedProfile& profile : embedded_profiles)
    names.push_back(profile.name);
  return names;
}

} // namespace adverb::policy
