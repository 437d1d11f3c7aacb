// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "interpose/extended.h"
#include "interpose/boundary.h"
#include "interpose/dispatch.h"

#include <cerrno>

namespace adverb::interpose::extended {

// What adds to a list cannot answer: wr_complete() says what went wrong.
#define WR(name, params, args)                                                                     \
  void name params noexcept {                                                                      \
    model::Qp& mine = managed(qp);                                                                 \
    boundary([&] { model::wr_failed(mine, errno); },                                               \
             [&] { model::name(mine, ADVERB_UNPACK args); });                                      \
  }
#define POST(name, params, args)                                                                   \
  int name params noexcept {                                                                       \
    return boundary([] { return errno; },                                                          \
                    [&] { return model::name(managed(qp), ADVERB_UNPACK args); });                 \
  }
#define CQ(ret, name, params, args, fail)                                                          \
  ret name params noexcept {                                                                       \
    return boundary(                                                                               \
        []() -> ret { return fail; },                                                              \
        [&]() -> ret { return model::cq_ex_##name(managed(cq), ADVERB_UNPACK args); });            \
  }
#include "provider/extended.def"

} // namespace adverb::interpose::extended
