// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/service.h"
#include "world/transition.h"

namespace adverb::link {

service::Service& Service::get() {
  return transition::world().service;
}

void own_fd(int fd) noexcept {
  transition::world().service.own_fd(fd);
}

void disown_fd(int fd) noexcept {
  transition::world().service.disown_fd(fd);
}

} // namespace adverb::link
