// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The real libibverbs, as adverb calls it.
//
// real() holds the functions that stand behind adverb's hooks, found once, each at its exact
// version node. Call them, and the provider's own pointers (ops.h), under an Inside guard: what the
// real library calls in turn then goes straight through the hooks.
#pragma once

#include <infiniband/verbs.h>

// verbs.h makes macros of some functions; here their names are members.
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port
#undef ibv_query_gid_type

namespace adverb::provider {

struct Real {
#define HOOK(ret, name, node, need, params, args, fail)                                            \
  decltype(&::ibv_##name) ibv_##name = nullptr;
#define PASS(name, node, need, why)
#define CALL(name, node) decltype(&::ibv_##name) ibv_##name = nullptr;
#include "interpose/verbs.def"
};

// Thread-safe; the first call resolves. A required function that is missing is logged once; its
// pointer stays null and its hook answers with the verb's own error.
const Real& real() noexcept;

// True while this thread is inside the real library on adverb's behalf.
bool inside() noexcept;

class Inside {
public:
  Inside() noexcept;
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

} // namespace adverb::provider
