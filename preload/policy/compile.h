// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// From a document that the schema allows to settings and rules, with the checks a schema cannot
// say.
#pragma once

#include "policy/json.h"
#include "policy/rule.h"

namespace adverb::policy {

// Compiles every rule of the file, whatever program it is for. Entries that already have an error
// are skipped; new errors are added. The result means something only if `errors` stays empty.
Document compile(const Json& document, const std::string& file, std::vector<Error>& errors);

// Adds an error for each rule, or action of a rule, that earlier rules always decide first.
void find_shadowed(const std::vector<Rule>& rules, const std::string& file,
                   std::vector<Error>& errors);

// The pre-shared key in `path`, or an empty vector and an error at /link/key_file.
std::vector<uint8_t> read_key(const std::string& path, const std::string& file,
                              std::vector<Error>& errors);

} // namespace adverb::policy
