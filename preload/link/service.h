// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Transition: the process's service for rooms that are not yet handed a World (service/service.h).
#pragma once

#include "service/thread.h"
#include "world/world.h"

namespace adverb::link {

struct Service {
  static service::Service& get();
};

void own_fd(int fd) noexcept;
void disown_fd(int fd) noexcept;

} // namespace adverb::link
