// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "model/objects.h"
#include "model/context.h"
#include "model/cq.h"
#include "model/qp.h"
#include "model/srq.h"

namespace adverb::model {

std::shared_ptr<Context> Objects::managed(ibv_context* context) const {
  auto found = contexts.share(context);
  return found && found->passes_through() ? nullptr : found;
}

void Objects::in_child() {
  const bool had_queues = !cqs.empty() || !qps.empty() || !srqs.empty();
  renew(posting);
  contexts.relock();
  for (const auto& context : contexts.all())
    context->in_child(had_queues);
  cqs.abandon();
  srqs.abandon();
  qps.abandon();
}

} // namespace adverb::model
