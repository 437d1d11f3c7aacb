// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Files a policy is made of, opened with care: a preloaded library obeys what they say.
#pragma once

#include "policy/policy.h"

#include <cstddef>
#include <optional>
#include <string>
#include <sys/types.h>

namespace adverb::policy {

enum class Secrecy : uint8_t {
  readable, // anybody may read, only the owner may write
  secret,   // only the owner may do either
};

// What read_trusted() found out about a file that it did not accept.
struct Refusal {
  std::string reason;
  std::string remedy;
  bool missing = false; // there is no such file
};

// The file's bytes, if it is a regular file of at most `limit` bytes that belongs to root or the
// effective user and that nobody else can write (or read, if secret). Else why not, in `refusal`.
std::optional<std::string> read_trusted(const std::string& path, Secrecy secrecy, size_t limit,
                                        Refusal& refusal);

} // namespace adverb::policy
