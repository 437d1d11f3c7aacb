// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Who has the signals of memory faults: the kernel's handler of SIGSEGV and SIGBUS is adverb's,
// from the first native copy on, and the program's dispositions are kept here and look to it as if
// they were the kernel's.
//
// A fault inside native_copy goes on there. Every other one, and each signal that somebody sent, is
// the program's: its handler is jumped to with the frame the kernel made, under the mask, flags and
// stack it asked for, as the kernel's handler is installed with these. What ends the process
// without adverb ends it here. SIG_IGN stays with the kernel, as exec hands it on; there are no
// native copies then.
//
// All functions may be called by any thread at any time, from signal handlers too, and keep errno
// unless they answer for sigaction().
#pragma once

#include <atomic>
#include <csignal>
#include <cstdint>

namespace adverb::memory {

// SIGSEGV and SIGBUS, where there are native copies.
bool mirrored(int signal) noexcept;

// sigaction() of one of these, for the program. Before the first native copy, in a child made
// without its own memory (vfork) and after lose() it is the kernel's.
int program_sigaction(int signal, const struct sigaction* now, struct sigaction* was) noexcept;

enum class Native : uint8_t { unasked, on, ignored, lost };
extern std::atomic<Native> native_state;

// The first native copy is wanted: installs the handler.
void take_over() noexcept;

// Asks the kernel whose its handlers are. Another's: adverb is done with native copies in this
// process, tells the listener, and puts back what it had taken.
bool handlers_in_place() noexcept;

// Called once, by the thread that finds its handler gone, with no lock held by this room.
using Listener = void (*)() noexcept;
void when_lost(Listener listener) noexcept;

// What a thread knows of its own mask.
struct MaskLook {
  uint64_t at = 0; // nanoseconds; 0: look again
  bool clear = false;
};
MaskLook& mask_look() noexcept;

// This thread's mask may be another now.
inline void mask_may_change() noexcept {
  mask_look().at = 0;
}

} // namespace adverb::memory
