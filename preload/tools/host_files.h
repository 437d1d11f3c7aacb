// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Files of /proc, /sys and /dev as the checks of a host read them. The root they lie below is
// given, so that tests can lay out a host of their own.
#pragma once

#include <string>
#include <vector>

namespace adverb::tools {

class HostFiles {
public:
  explicit HostFiles(std::string root = {}) : root_(std::move(root)) {}

  // Where `path`, absolute on that host, lies on this one.
  std::string at(const std::string& path) const { return root_ + path; }
  bool is_this() const { return root_.empty(); } // not one that a test has laid out
  bool exists(const std::string& path) const;
  std::string first_line(const std::string& path) const;           // empty if it cannot be read
  std::string content(const std::string& path) const;              // the same
  std::vector<std::string> names(const std::string& folder) const; // sorted, none hidden
  // The last part of what a link points at; empty if it is none.
  std::string link_name(const std::string& path) const;

private:
  std::string root_;
};

} // namespace adverb::tools
