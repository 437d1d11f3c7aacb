// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The broker as a process of its own: the command `adverb broker`, from where this library is.
#pragma once

#include <cstdint>

namespace adverb::observe {
class Log;
}

namespace adverb::link {

// Starts one that serves these listening sockets to programs of this user, until it has had nobody
// for a second. They stay the caller's. What it has to say goes to the file that `log` writes to,
// or, as it has no stderr, to the system's log. errno value: ENOENT, the command is not where it is
// installed.
int start_broker_process(uint16_t port, const observe::Log& log, int members, int peers) noexcept;

} // namespace adverb::link
