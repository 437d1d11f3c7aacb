// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "provider/real.h"
#include "observe/log.h"

#include <dlfcn.h>

namespace adverb::provider {
namespace {

thread_local unsigned depth = 0;

// The next libibverbs in search order; in a program that loaded it with RTLD_LOCAL there is no
// next, so an already loaded one by name, else a load of our own.
void* find(const char* name, const char* node) {
  if (void* f = dlvsym(RTLD_NEXT, name, node))
    return f;
  static void* const library = [] {
    void* loaded = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL);
    return loaded != nullptr ? loaded : dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  }();
  return library == nullptr ? nullptr : dlvsym(library, name, node);
}

enum class Need { required, optional };
constexpr Need required = Need::required;
constexpr Need optional = Need::optional;

template <typename F> void resolve(F& into, const char* name, const char* node, Need need) {
  into = reinterpret_cast<F>(find(name, node));
  if (into == nullptr && need == required)
    observe::log_error("{}@{} is not in the installed libibverbs; calls to it will fail", name,
                       node);
}

Real resolve_all() {
  Real r;
#define HOOK(ret, name, node, need, params, args, fail)                                            \
  resolve(r.ibv_##name, "ibv_" #name, #node, need);
#define PASS(name, node, need, why)
#define CALL(name, node) resolve(r.ibv_##name, "ibv_" #name, #node, required);
#include "interpose/verbs.def"
  return r;
}

} // namespace

const Real& real() noexcept {
  static const Real r = resolve_all();
  return r;
}

bool inside() noexcept {
  return depth != 0;
}

Inside::Inside() noexcept {
  ++depth;
}

Inside::~Inside() {
  --depth;
}

} // namespace adverb::provider
