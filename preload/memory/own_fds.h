// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Descriptors that adverb keeps open in the program's process.
//
// A program that closes every number from 3 on, as daemons do, does not mean these; the hooks of
// close(2) and its like (interpose/descriptors.cpp) leave them open, or a number that came back for
// a file of the program's would be read and written as adverb's. They are kept high, so that the
// program's own files get the numbers they would have without adverb.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace adverb::own_fds {

// Higher numbers than these are not known to be adverb's.
inline constexpr size_t known_max = 65536;

// All of the following may be called from any thread and from signal handlers.
void add(int fd) noexcept;
void remove(int fd) noexcept;
bool has(int fd) noexcept;
/// The first of adverb's from `fd` on; known_max: there is none.
size_t next_from(size_t fd) noexcept;
/// Closes one of adverb's own, past the hooks.
void shut(int fd) noexcept;
/// Closes all of them and forgets them: in a fork child, whose numbers are the parent's.
void close_all() noexcept;

/// Moves an open descriptor of adverb's to a high number, close-on-exec: the new number, or `fd`
/// itself where it is high or there is no room. A negative one is passed through; errno stays as it
/// is.
int raised(int fd) noexcept;

} // namespace adverb::own_fds
