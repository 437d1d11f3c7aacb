// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The page of one process, for the commands that show what is in it.
#pragma once

#include <string>

#include <sys/types.h>

namespace adverb::tools {

// Why a process has no page, as far as can be seen from here: a sentence without a full stop.
std::string why_no_page(pid_t pid);

// "12" is 12; false: the text is not a process id.
bool parse_pid(const char* text, pid_t& pid);

} // namespace adverb::tools
