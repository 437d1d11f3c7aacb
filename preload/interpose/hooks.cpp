// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The ABI edge: one hook per HOOK line of verbs.def, at its version node by the version script.
#include "interpose/boundary.h"
#include "interpose/constructor.h"
#include "interpose/process_world.h"
#include "model/verbs.h"

#include <cerrno>
#include <infiniband/verbs.h>
#include <string_view>

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

// A thread that waits may be cancelled, and is unwound from there by the C library. No frame of
// adverb's may then have anything to be cleaned up: it has a C++ runtime of its own, which that
// unwinder cannot call.
constexpr bool waits(std::string_view verb) noexcept {
  return verb == "get_async_event";
}

template <bool may_be_cancelled, typename Fail, typename Body>
auto enter(Fail&& fail, Body&& body) -> decltype(body()) {
  if constexpr (may_be_cancelled)
    return body();
  else
    return interpose::uncancelled(fail, body);
}

} // namespace

// Under a name of its own in C++, as verbs.h declares the verb in other words.
#define HOOK(ret, name, node, need, params, args, fail)                                            \
  extern "C" __attribute__((visibility("default"))) ret hook_##name params __asm__("ibv_" #name);  \
  ret hook_##name params {                                                                         \
    adverb::World& world = interpose::process_world();                                             \
    const auto& real = world.provider.real();                                                      \
    if (missing(real.ibv_##name, need))                                                            \
      return fail;                                                                                 \
    if (pass())                                                                                    \
      return real.ibv_##name args;                                                                 \
    world.counters.count(adverb::observe::Counter::hooks_calls);                                   \
    return enter<waits(#name)>([] { return fail; },                                                \
                               [&] { return adverb::model::Verbs{world}.name args; });             \
  }
#include "provider/verbs.def"
