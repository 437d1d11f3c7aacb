// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How the parts of this room reach each other when a process forks or exits. Not for other rooms.
#pragma once

namespace adverb::observe {

/// Registers after_fork_child() with pthread_atfork, once per process image. Any thread.
void install_fork_handler() noexcept;

namespace detail {

// log.cpp, log_limit.cpp
void log_silence() noexcept; ///< child: no output, the parent's logger is abandoned
void log_resume() noexcept;  ///< opens the log as last asked for, unless it is open
void log_forget() noexcept;  ///< child: nothing has been said yet

// page.cpp
bool started() noexcept;            ///< start() has run in this process
void gather_late_counts() noexcept; ///< counts that raced with the change of page
void unlink_page() noexcept;        ///< only a page of this very process

// finish.cpp
void exit_forget() noexcept; ///< child: has written nothing yet

} // namespace detail

} // namespace adverb::observe
