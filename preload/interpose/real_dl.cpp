// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "interpose/real_dl.h"

#include <cstdint>
#include <cstring>
#include <elf.h>
#include <link.h>

namespace adverb::interpose {
namespace {

void* find_nothing(void*, const char*) noexcept {
  return nullptr;
}
void* find_no_version(void*, const char*, const char*) noexcept {
  return nullptr;
}

// The tables of one loaded object. The loader has made the addresses in its dynamic section
// absolute (on x86-64 and aarch64).
struct Tables {
  uintptr_t base = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const uint32_t* hash = nullptr; // DT_GNU_HASH

  explicit Tables(const dl_phdr_info& object) : base(object.dlpi_addr) {
    for (int i = 0; i < object.dlpi_phnum; ++i)
      if (object.dlpi_phdr[i].p_type == PT_DYNAMIC)
        read(reinterpret_cast<const ElfW(Dyn)*>(base + object.dlpi_phdr[i].p_vaddr));
  }

  void read(const ElfW(Dyn) * entry) {
    for (; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_SYMTAB)
        symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
      else if (entry->d_tag == DT_STRTAB)
        strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
      else if (entry->d_tag == DT_GNU_HASH)
        hash = reinterpret_cast<const uint32_t*>(entry->d_un.d_ptr);
    }
  }

  // Walks the chains of the hash table: header of 4 words, bloom filter, buckets, chains.
  void* find(const char* name) const {
    if (symbols == nullptr || strings == nullptr || hash == nullptr)
      return nullptr;
    const uint32_t bucket_count = hash[0];
    const uint32_t first = hash[1];
    const uint32_t* buckets = hash + 4 + hash[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t* chains = buckets + bucket_count;
    for (uint32_t b = 0; b < bucket_count; ++b)
      for (uint32_t i = buckets[b]; i >= first; ++i) {
        if (symbols[i].st_shndx != SHN_UNDEF && strcmp(strings + symbols[i].st_name, name) == 0)
          return reinterpret_cast<void*>(base + symbols[i].st_value);
        if ((chains[i - first] & 1) != 0)
          break;
      }
    return nullptr;
  }
};

// In the C library since glibc 2.34, in libdl before.
int visit(dl_phdr_info* object, size_t, void* into) {
  const char* slash = strrchr(object->dlpi_name, '/');
  const char* file = slash != nullptr ? slash + 1 : object->dlpi_name;
  if (strcmp(file, "libc.so.6") != 0 && strcmp(file, "libdl.so.2") != 0)
    return 0;
  const Tables tables(*object);
  void* by_name = tables.find("dlsym");
  void* by_version = tables.find("dlvsym");
  if (by_name == nullptr || by_version == nullptr)
    return 0;
  auto& real = *static_cast<RealDl*>(into);
  real.dlsym = reinterpret_cast<decltype(real.dlsym)>(by_name);
  real.dlvsym = reinterpret_cast<decltype(real.dlvsym)>(by_version);
  return 1;
}

RealDl look() {
  RealDl real{find_nothing, find_no_version};
  dl_iterate_phdr(visit, &real);
  return real;
}

} // namespace

const RealDl& real_dl() noexcept {
  static const RealDl real = look();
  return real;
}

} // namespace adverb::interpose
