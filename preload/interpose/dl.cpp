// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// libadverb-dl.so: for programs that load libibverbs themselves. What they look up in its handle
// escapes libadverb.so, so dlsym() and dlvsym() answer with its hook where, and only where, the
// handle has a symbol of the table at the hook's node. Preload it beside libadverb.so.
#include "interpose/real_dl.h"

#include <cstring>
#include <dlfcn.h>

namespace adverb::interpose {
namespace {

struct Hook {
  const char* name;
  const char* node;
};

constexpr Hook hooks[] = {
#define HOOK(ret, name, node, need, params, args, fail) {"ibv_" #name, #node},
#include "provider/verbs.def"
};

const Hook* find(const void* handle, const char* name) {
  // RTLD_DEFAULT meets the preloaded hooks first; RTLD_NEXT means what comes after the caller.
  if (handle == RTLD_NEXT || handle == RTLD_DEFAULT || strncmp(name, "ibv_", 4) != 0)
    return nullptr;
  for (const Hook& h : hooks)
    if (strcmp(h.name, name) == 0)
      return &h;
  return nullptr;
}

const void* file_of(const void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

// libadverb.so looks up what stands behind its hooks; it must not find itself.
void* answer(const Hook& hook, void* theirs, const void* caller) {
  if (theirs == nullptr)
    return nullptr;
  void* ours = real_dl().dlvsym(RTLD_DEFAULT, hook.name, hook.node);
  return ours == nullptr || file_of(ours) == file_of(caller) ? theirs : ours;
}

} // namespace
} // namespace adverb::interpose

using namespace adverb::interpose;

// The C library tells the caller by the return address, so what is not ours to answer must leave
// here as a jump, in unoptimised builds as well.
#ifdef __clang__
#define JUMPS
#else
#define JUMPS , optimize("O2")
#endif
#define EXPORTED extern "C" __attribute__((visibility("default") JUMPS))

EXPORTED void* dlsym(void* handle, const char* name) noexcept {
  const Hook* hook = find(handle, name);
  if (hook == nullptr)
    return real_dl().dlsym(handle, name);
  return answer(*hook, real_dl().dlsym(handle, name), __builtin_return_address(0));
}

EXPORTED void* dlvsym(void* handle, const char* name, const char* node) noexcept {
  const Hook* hook = find(handle, name);
  if (hook == nullptr || strcmp(hook->node, node) != 0)
    return real_dl().dlvsym(handle, name, node);
  return answer(*hook, real_dl().dlvsym(handle, name, node), __builtin_return_address(0));
}
