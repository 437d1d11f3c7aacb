// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Native stores into the program's memory that report a fault instead of dying of it.
//
// The kernel's copy routines may tear an 8-byte value (a `rep movsb` of 8 bytes is 8 stores on some
// processors and under emulation); a NIC does not. So the end of a message is stored natively,
// under a SIGSEGV/SIGBUS handler that knows this one store. The handler is installed at first use,
// passes every other fault on to whoever had the signal before, and is asked for before each store:
// a program that replaced it, or a thread that blocks the signal, makes store_native() decline.
#pragma once

#include <cstddef>

namespace adverb::memory {

// Stores 1..8 bytes that lie within one aligned 8-byte word: 8 aligned bytes as one store, fewer as
// the largest natural pieces in rising order. False: nothing was promised, use the kernel.
bool store_native(void* to, const void* from, size_t bytes) noexcept;

} // namespace adverb::memory
