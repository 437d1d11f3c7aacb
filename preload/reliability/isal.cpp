// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "reliability/isal.h"

#include <dlfcn.h>

namespace adverb::reliability {

std::optional<Isal> load_isal(const char* name) {
  void* library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr)
    return std::nullopt;
  Isal found{};
  found.ec_init_tables =
      reinterpret_cast<decltype(found.ec_init_tables)>(dlsym(library, "ec_init_tables"));
  found.ec_encode_data =
      reinterpret_cast<decltype(found.ec_encode_data)>(dlsym(library, "ec_encode_data"));
  if (found.ec_init_tables == nullptr || found.ec_encode_data == nullptr) {
    dlclose(library);
    return std::nullopt;
  }
  return found;
}

const Isal* isal() {
  static const std::optional<Isal> found = load_isal("libisal.so.2");
  return found ? &*found : nullptr;
}

} // namespace adverb::reliability
