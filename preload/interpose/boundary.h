// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The one place where an exception of adverb's becomes the verb's own error.
#pragma once

#include "world/no_cancel.h"

#include <cerrno>
#include <exception>
#include <new>

namespace adverb::interpose {

// Counts an exception that was caught here, and logs what it says, if anything, in the process's
// World.
void caught(const char* what) noexcept;

// Runs `body`, where nothing cancels the thread (world/no_cancel.h); if it throws, sets errno and
// returns `fail()`, evaluated then: verbs that return an error number say so by returning errno.
// Nothing passes the C ABI.
template <typename Fail, typename Body>
auto boundary(Fail&& fail, Body&& body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    caught(nullptr);
    errno = ENOMEM;
  } catch (const std::exception& e) {
    caught(e.what());
    errno = EIO;
  } catch (...) {
    caught(nullptr);
    errno = EIO;
  }
  return fail();
}

// The same where something might.
template <typename Fail, typename Body>
auto uncancelled(Fail&& fail, Body&& body) noexcept -> decltype(body()) {
  const NoCancel whole;
  return boundary(fail, body);
}

} // namespace adverb::interpose
