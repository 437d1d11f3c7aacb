// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Starting a program that is to have nothing to do with this one.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace adverb::link {

// Starts `path` with `words` behind its name. It gets `sockets` from descriptor 3 on, as systemd
// hands sockets over (sd_listen_fds(3)), and nothing else of this process: no other descriptor, no
// variable of the environment, no signal that is blocked or ignored, no session, no priority of
// real time, no place on processors. It is no child of this process either: its end is told to
// nobody here, by SIGCHLD or wait(2), and this process's end is nothing to it.
//
// Returns when it runs, or errno value. The sockets stay the caller's. Any thread; the caller's
// signals are blocked meanwhile.
int start_detached(const std::string& path, const std::vector<std::string>& words,
                   std::span<const int> sockets) noexcept;

} // namespace adverb::link
