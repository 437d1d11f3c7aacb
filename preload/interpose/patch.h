// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Inline verbs jump through pointers in the provider's structures; these put adverb's there, in
// place. A copied structure would break the provider, which computes its own from the address.
// Slots the provider left empty, or a verbs_context too old to have, stay as they are.
#pragma once

#include "provider/ops.h"

#include <infiniband/verbs.h>

namespace adverb::interpose {

// At open of a managed device, before the program sees the context: whatever the program itself,
// or a tracer, puts there later stands before adverb's, and calls it. What stood there before is
// what adverb calls. At close that is put back, where adverb's own still stands.
// False: there are too many contexts, and nothing was changed.
bool patch(ibv_context* context);
void unpatch(ibv_context* context);

// One object; returns the provider's pointers.
void patch_qp_ex(ibv_qp_ex* qp);
provider::CqExOps patch_cq_ex(ibv_cq_ex* cq);

} // namespace adverb::interpose
