// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The ABI edge: one hook per HOOK line of verbs.def, at its version node by the version script.
#include "interpose/boundary.h"
#include "interpose/constructor.h"
#include "interpose/process_world.h"
#include "model/verbs.h"

#include <cerrno>
#include <infiniband/verbs.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace {

namespace interpose = adverb::interpose;
namespace provider = adverb::provider;

constexpr int required = ENOSYS;
constexpr int optional = EOPNOTSUPP;

template <typename Function> bool missing(Function function, int error) noexcept {
  if (function != nullptr)
    return false;
  errno = error;
  return true;
}

// Called by adverb itself, or by the real library on adverb's behalf, or before there is anything
// to do: straight through.
bool pass() noexcept {
  return provider::inside() || !interpose::active();
}

} // namespace

// Under a name of its own in C++, because verbs.h declares the verb without noexcept.
#define HOOK(ret, name, node, need, params, args, fail)                                            \
  extern "C" __attribute__((visibility("default"))) ret hook_##name params noexcept __asm__(       \
      "ibv_" #name);                                                                               \
  ret hook_##name params noexcept {                                                                \
    adverb::World& world = interpose::process_world();                                             \
    const auto& real = world.provider.real();                                                      \
    if (missing(real.ibv_##name, need))                                                            \
      return fail;                                                                                 \
    if (pass())                                                                                    \
      return real.ibv_##name args;                                                                 \
    world.counters.count(adverb::observe::Counter::hooks_calls);                                   \
    return interpose::boundary([] { return fail; },                                                \
                               [&] { return adverb::model::Verbs{world}.name args; });             \
  }
#include "provider/verbs.def"
