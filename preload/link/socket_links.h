// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The product's Links.
#pragma once

#include "link/links.h"

#include <memory>

namespace adverb {
class World;
}

namespace adverb::link {

// Over sockets and companion queue pairs, as the policy says.
std::shared_ptr<Links> make_links(World& world);

} // namespace adverb::link
