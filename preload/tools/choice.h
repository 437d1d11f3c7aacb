// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The policy that the command line names with --profile or --policy, if any.
#pragma once

#include "policy/policy.h"

#include <string>

namespace adverb::tools {

struct PolicyChoice {
  std::string profile;
  std::string file;

  bool made() const { return !profile.empty() || !file.empty(); }
  // What ADVERB_POLICY must hold for the library to make the same choice from any directory.
  std::string environment() const;
  // The policy for one program. Errors are those of the policy rooms, with a hint added if the
  // file's name is that of a profile or the other way round.
  policy::Loaded load(std::string_view program) const;
};

// Sets the choice from an option's value; false, after saying why, if it is the second one.
bool choose_profile(PolicyChoice& choice, const char* value, const char* context);
bool choose_file(PolicyChoice& choice, const char* value, const char* context);

// Every error on stderr, one per line.
void print_errors(const std::vector<policy::Error>& errors);

// How the policy was found, in a few words: "named by ADVERB_POLICY", "this user's" and so on.
std::string origin(const PolicyChoice& choice, const policy::Policy& policy);

} // namespace adverb::tools
