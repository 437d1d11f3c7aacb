// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The one place where an exception of adverb's becomes the verb's own error.
#pragma once

#include "observe/counters.h"
#include "observe/log.h"

#include <cerrno>
#include <exception>
#include <new>

namespace adverb::interpose {

// Runs `body`; if it throws, sets errno and returns `fail()`, evaluated then: verbs that return an
// error number say so by returning errno. Nothing passes the C ABI.
template <typename Fail, typename Body>
auto boundary(Fail&& fail, Body&& body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
  } catch (const std::exception& e) {
    observe::log_error("internal error: {}", e.what());
    errno = EIO;
  } catch (...) {
    errno = EIO;
  }
  observe::count(observe::Counter::exceptions_caught);
  return fail();
}

} // namespace adverb::interpose
