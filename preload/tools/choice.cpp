// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "tools/choice.h"

#include "policy/suggest.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>

namespace adverb::tools {
namespace {

bool refuse_second(const PolicyChoice& choice, const char* value, const char* context) {
  if (*value == '\0')
    fprintf(stderr, "%s: the name of a policy is empty\n", context);
  else if (choice.made())
    fprintf(stderr, "%s: give --profile or --policy once\n", context);
  else
    return false;
  return true;
}

} // namespace

std::string PolicyChoice::environment() const {
  if (!profile.empty())
    return profile;
  char absolute[PATH_MAX];
  return realpath(file.c_str(), absolute) != nullptr ? std::string(absolute) : file;
}

policy::Loaded PolicyChoice::load(std::string_view program) const {
  if (!profile.empty()) {
    policy::Loaded loaded = policy::load_profile(profile, program);
    const bool is_path = profile.find('/') != profile.npos || profile.ends_with(".json");
    if (!loaded && is_path)
      loaded.errors.front().remedy = "for a file use --policy " + profile;
    return loaded;
  }
  if (file.empty())
    return policy::load_for_program(program);
  policy::Loaded loaded = policy::load_file(environment(), program);
  if (!loaded && std::ranges::count(policy::profile_names(), std::string_view(file)) > 0)
    loaded.errors.front().remedy = "for the profile use --profile " + file;
  return loaded;
}

bool choose_profile(PolicyChoice& choice, const char* value, const char* context) {
  if (refuse_second(choice, value, context))
    return false;
  choice.profile = value;
  return true;
}

bool choose_file(PolicyChoice& choice, const char* value, const char* context) {
  if (refuse_second(choice, value, context))
    return false;
  choice.file = value;
  return true;
}

void print_errors(const std::vector<policy::Error>& errors) {
  for (const policy::Error& error : errors)
    fprintf(stderr, "adverb: %s\n", error.text().c_str());
}

std::string origin(const PolicyChoice& choice, const policy::Policy& policy) {
  if (choice.made())
    return "named on the command line";
  const char* named = getenv("ADVERB_POLICY");
  if (named != nullptr && *named != '\0')
    return "named by ADVERB_POLICY";
  if (policy.source() == "built-in default")
    return "no policy is named or installed";
  return policy.source().starts_with("/etc/") ? "this host's" : "this user's";
}

} // namespace adverb::tools
