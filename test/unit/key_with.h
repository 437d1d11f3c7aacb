// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A virtual key of a test's own choosing.
#pragma once

#include "registration/keys.h"

#include <list>
#include <memory>

namespace adverb::test {

inline std::shared_ptr<registration::Key>
key_with(const std::shared_ptr<registration::FreeKeys>& pool, uint32_t value) {
  auto key = std::make_shared<registration::Key>(pool);
  std::list<uint32_t> place{value};
  key->take(place);
  return key;
}

} // namespace adverb::test
