// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#pragma once

namespace adverb::interpose {

// Declared noexcept as the C library does: a call that might throw cannot leave a noexcept function
// by a jump.
struct RealDl {
  void* (*dlsym)(void* handle, const char* name) noexcept = nullptr;
  void* (*dlvsym)(void* handle, const char* name, const char* node) noexcept = nullptr;
};

// The C library's own, which cannot be asked for by the functions that hide them: read from its
// symbol table. Any thread, at any time, also before constructors ran. If the C library cannot be
// read the functions find nothing.
const RealDl& real_dl() noexcept;

} // namespace adverb::interpose
