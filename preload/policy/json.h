// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Reads JSON text strictly: one document, no duplicate keys, bounded depth and size.
#pragma once

#include "policy/policy.h"

#include <nlohmann/json.hpp>

namespace adverb::policy {

// Keeps keys in the file's order, so that errors come in the order a reader meets them.
using Json = nlohmann::ordered_json;

constexpr size_t max_text = 1u << 20; // bytes
constexpr size_t max_depth = 32;

// The document, or null with at least one entry added to `errors`. `file` names it in errors.
Json read_json(std::string_view text, const std::string& file, std::vector<Error>& errors);

// `token` escaped and appended to a JSON pointer.
std::string child_pointer(const std::string& pointer, std::string_view token);

} // namespace adverb::policy
