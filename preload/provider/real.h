// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The functions that stand behind adverb's hooks, and the guard they are called under.
#pragma once

#include "world/sync.h"

#include <cerrno>

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
#include "provider/verbs.def"
};

// Why a function of the real library failed that leaves that in errno; never 0.
inline int failure() noexcept {
  return errno != 0 ? errno : ENOMEM;
}

// True while this thread is inside the real library on adverb's behalf, whichever World's.
bool inside() noexcept;

class Inside {
public:
  Inside() noexcept { ++depth(); }
  ~Inside() { --depth(); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

private:
  friend bool inside() noexcept;
  static unsigned& depth() noexcept { return ThreadLocal<unsigned, Inside>::get(); }
};

inline bool inside() noexcept {
  return Inside::depth() != 0;
}

} // namespace adverb::provider
