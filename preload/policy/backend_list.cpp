// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The list of backends as the policy sees it.
#include "policy/backends.h"

#ifndef ADVERB_BACKENDS
#define ADVERB_BACKENDS "policy/backends.def"
#endif

namespace adverb::policy {
namespace {

constexpr BackendTraits rows[] = {
#define BACKEND(name, unpins, lends, leases, views, verdict, words)                                \
  {#name, unpins, lends, leases, Views::views, verdict, words},
#include ADVERB_BACKENDS
};

} // namespace

const std::span<const BackendTraits> backends = rows;

} // namespace adverb::policy
