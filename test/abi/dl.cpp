// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Loads libibverbs as plug-in style programs do and prints "HOW SYMBOL OWNER" of what it looks up.
// OWNER: adverb, verbs, other, none.
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <initializer_list>

namespace {

void say(const char* how, const char* name, void* found) {
  Dl_info info{};
  const char* owner = "none";
  if (found != nullptr && dladdr(found, &info) != 0)
    owner = strstr(info.dli_fname, "libadverb") != nullptr    ? "adverb"
            : strstr(info.dli_fname, "libibverbs") != nullptr ? "verbs"
                                                              : "other";
  printf("%s %s %s\n", how, name, owner);
}

} // namespace

int main() {
  void* verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (verbs == nullptr)
    return fprintf(stderr, "%s\n", dlerror()), 1;
  for (const char* name : {"ibv_reg_mr", "ibv_create_qp", "ibv_fork_init", "ibv_no_such_verb"})
    say("dlsym", name, dlsym(verbs, name));
  say("dlvsym-1.1", "ibv_reg_mr", dlvsym(verbs, "ibv_reg_mr", "IBVERBS_1.1"));
  say("dlvsym-1.0", "ibv_reg_mr", dlvsym(verbs, "ibv_reg_mr", "IBVERBS_1.0"));
  say("dlvsym-9.9", "ibv_reg_mr", dlvsym(verbs, "ibv_reg_mr", "IBVERBS_9.9"));
  say("default", "malloc", dlsym(RTLD_DEFAULT, "malloc"));
  say("next", "dlsym", dlsym(RTLD_NEXT, "dlopen"));
  using Marker = int (*)();
  if (const auto next = reinterpret_cast<Marker>(dlsym(RTLD_DEFAULT, "next_marker")))
    printf("marker next %d\n", next());
  // A call through what was found must not come back to itself.
  using List = void** (*)(int*);
  using Close = int (*)(void*);
  using Open = void* (*)(void*);
  int count = -1;
  void** list = reinterpret_cast<List>(dlsym(verbs, "ibv_get_device_list"))(&count);
  if (list != nullptr && count > 0) {
    void* context = reinterpret_cast<Open>(dlsym(verbs, "ibv_open_device"))(list[0]);
    if (context != nullptr &&
        reinterpret_cast<Close>(dlsym(verbs, "ibv_close_device"))(context) == 0)
      puts("opened device closed");
  }
  return 0;
}
