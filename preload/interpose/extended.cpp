// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "interpose/extended.h"
#include "interpose/boundary.h"
#include "interpose/dispatch.h"

#include <cerrno>

namespace adverb::interpose::extended {

// What adds to a list cannot answer: wr_complete() says what went wrong. In a fork child nothing is
// behind the parent's objects: queues are empty, and nothing can be posted.
#define WR(name, params, args)                                                                     \
  void name params noexcept {                                                                      \
    if (model::Qp* const mine = managed(qp))                                                       \
      boundary([&] { model::wr_failed(*mine, errno); },                                            \
               [&] { model::name(*mine, ADVERB_UNPACK args); });                                   \
  }
#define POST(name, params, args)                                                                   \
  int name params noexcept {                                                                       \
    model::Qp* const mine = managed(qp);                                                           \
    return mine == nullptr ? EINVAL                                                                \
                           : boundary([] { return errno; },                                        \
                                      [&] { return model::name(*mine, ADVERB_UNPACK args); });     \
  }
#define CQ(ret, name, params, args, fail)                                                          \
  ret name params noexcept {                                                                       \
    if (model::Cq* const mine = managed(cq))                                                       \
      return boundary([]() -> ret { return fail; },                                                \
                      [&]() -> ret { return model::cq_ex_##name(*mine, ADVERB_UNPACK args); });    \
    errno = ENOENT;                                                                                \
    return fail;                                                                                   \
  }
#include "provider/extended.def"

} // namespace adverb::interpose::extended
