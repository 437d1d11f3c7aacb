// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the verbs leave to the device, found out by trying.
#pragma once

#include <infiniband/verbs.h>

namespace adverb {
class World;
}

namespace adverb::model {

// Whether completions of a queue pair that is destroyed stay in their completion queue: software
// devices leave them there, adapters take them out. Tried with a queue pair of adverb's own in
// `pd`, which may be null; false where that cannot be had: a program must be ready for it.
bool leaves_completions(World& world, ibv_pd* pd);

// Whether its posts are system calls, where a thread may be cancelled: those of devices that are
// software in the kernel (soft-RoCE, soft-iWARP), which no hardware stands behind in sysfs.
bool posts_by_system_call(const ibv_device* device);

} // namespace adverb::model
