// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Checks a document against the policy's JSON Schema. Knows the part of draft-07 which that schema
// uses, and adverb's own keywords (policy/README.md); a unit test holds the schema to that part.
#pragma once

#include "policy/json.h"

#include <cstdint>

namespace adverb::policy {

// The embedded schema, parsed once, with the words of the backends there are.
const Json& schema();

// `part` with its "$ref" followed; keys beside the "$ref" win over those it leads to.
Json resolved(const Json& part);

// When a change of the file takes effect in a process that runs ("x-reload"): at once, for what is
// made from then on, or when the process starts.
enum class Takes : uint8_t { now, new_objects, restart };
Takes takes(const Json& part);

// Adds an error for everything in `document` that the schema does not allow. False: the document is
// of another version, and nothing in it has been looked at.
bool validate(const Json& document, const std::string& file, std::vector<Error>& errors);

} // namespace adverb::policy
