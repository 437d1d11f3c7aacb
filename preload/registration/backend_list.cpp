// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The list of backends as the registration sees it.
#include "registration/backend.h"

#ifndef ADVERB_BACKENDS
#define ADVERB_BACKENDS "policy/backends.def"
#endif

namespace adverb::registration {

#define BACKEND(name, ...)                                                                         \
  std::unique_ptr<Backend> make_##name(const policy::BackendTraits&, const Means&);
#include ADVERB_BACKENDS
#undef BACKEND

namespace {

constexpr Maker rows[] = {
#define BACKEND(name, ...) {#name, make_##name},
#include ADVERB_BACKENDS
#undef BACKEND
};

} // namespace

const std::span<const Maker> makers = rows;

} // namespace adverb::registration
