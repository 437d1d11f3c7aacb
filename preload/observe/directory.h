// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Where pages lie, what they are called, and which of them outlived their process.
//
// For set-up, exit and tools, not for the data path: everything here reads directories and /proc
// and may allocate and throw std::bad_alloc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace adverb::observe {

/// `adverb.<uid>.<pid>.<starttime>`
struct PageName {
  uid_t uid = 0;
  pid_t pid = 0;
  uint64_t start_time = 0; ///< clock ticks since boot; tells a reused pid from the old one

  std::string text() const;
};

std::optional<PageName> parse_page_name(std::string_view file_name);

/// The name of this process's page; nothing where /proc is not mounted.
std::optional<PageName> own_page_name();

/// Inode of this process's pid namespace, 0 if unknown.
uint64_t own_pid_namespace();

/// Where this process puts its page, best first: $XDG_RUNTIME_DIR (not under setuid), /dev/shm.
std::vector<std::string> own_directories();

/// Where a tool looks for pages of `uid`; of every user when the caller is root and uid is 0.
std::vector<std::string> search_directories(uid_t uid);

/// Processes that have a page in `directories`, each once, of whatever user, whose own the page is:
/// nobody can name others' processes there.
std::vector<pid_t> processes_with_pages(const std::vector<std::string>& directories);

struct FoundPage {
  std::string path;
  PageName name;
  bool live = false; ///< its process runs and still has it mapped (an exec drops it)
};

/// Pages of `uid` (every user's for root) below `directories`; files of another owner than their
/// name says, links and anything but regular files are left out. Sorted by pid.
std::vector<FoundPage> find_pages(const std::vector<std::string>& directories, uid_t uid);

/// Unlinks what find_pages() found dead, pages of other pid namespaces excepted: their processes
/// cannot be seen from here. Returns how many it removed.
size_t remove_stale(const std::vector<FoundPage>& pages);

} // namespace adverb::observe
