// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a policy can say about registration. Rules name a backend; everything else asks what it
// does.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace adverb::policy {

enum class Views : unsigned char { no, asked, possible };

// One row of backends.def. Rows are told apart by their address.
struct BackendTraits {
  std::string_view name;
  bool unpins = false;
  bool lends = false;
  bool leases = false;
  Views views = Views::no;
  std::string_view verdict;
  std::string_view words;
};

// Every backend there is, never empty. Defined in backend_list.cpp, which is linked by itself: a
// test lists one more.
extern const std::span<const BackendTraits> backends;

// What a region gets for which no rule speaks, and one that no other backend can take.
inline const BackendTraits& stock_backend() noexcept {
  return backends.front();
}

// Null: there is no backend of that name.
const BackendTraits* find_backend(std::string_view name) noexcept;

std::vector<std::string_view> backend_names();

// The description of the key "register", as the schema must have it.
std::string describe_backends();

} // namespace adverb::policy
