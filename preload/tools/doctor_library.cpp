// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Do the hooks of libadverb.so fit the libraries installed here? A hook at the wrong version node
// is not an error to the loader: it is just never called.
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "tools/doctor.h"
#include "tools/library.h"

#include <algorithm>
#include <cctype>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <map>
#include <optional>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <link.h>

namespace adverb::tools {
namespace {

struct Symbol {
  std::string name;
  std::string version; // node, e.g. "IBVERBS_1.1"; empty for an unversioned symbol
};

// A file as ELF-64, every offset checked: out of bounds reads give zeroed structures. Mapped, as
// what is looked at is little of a library with debug information.
class ElfFile {
public:
  explicit ElfFile(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat file{};
    if (fd >= 0 && fstat(fd, &file) == 0) {
      const auto size = static_cast<size_t>(file.st_size);
      void* const start = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
      if (start != MAP_FAILED)
        bytes_ = {static_cast<const char*>(start), size};
    }
    if (fd >= 0)
      close(fd);
    const auto header = at<Elf64_Ehdr>(0);
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64)
      return;
    for (size_t i = 0; i < header.e_shnum; ++i)
      sections_.push_back(at<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr)));
  }

  ~ElfFile() {
    if (!bytes_.empty())
      munmap(const_cast<char*>(bytes_.data()), bytes_.size());
  }
  ElfFile(const ElfFile&) = delete;
  ElfFile& operator=(const ElfFile&) = delete;

  // What other objects can bind to.
  std::vector<Symbol> exports() const {
    const Elf64_Shdr* table = section(SHT_DYNSYM);
    const Elf64_Shdr* versions = section(SHT_GNU_versym);
    if (table == nullptr)
      return {};
    const auto nodes = version_names();
    std::vector<Symbol> out;
    for (size_t i = 0; i < table->sh_size / sizeof(Elf64_Sym); ++i) {
      const auto symbol = at<Elf64_Sym>(table->sh_offset + i * sizeof(Elf64_Sym));
      if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx == SHN_ABS ||
          ELF64_ST_TYPE(symbol.st_info) != STT_FUNC)
        continue;
      unsigned index = 1;
      if (versions != nullptr)
        index = at<Elf64_Half>(versions->sh_offset + i * sizeof(Elf64_Half)) & 0x7fff;
      const auto node = nodes.find(index);
      out.push_back({text(*table, symbol.st_name), node == nodes.end() ? "" : node->second});
    }
    return out;
  }

  // The version nodes this file defines, by index; 1 is the file itself.
  std::map<unsigned, std::string> version_names() const {
    std::map<unsigned, std::string> out;
    const Elf64_Shdr* definitions = section(SHT_GNU_verdef);
    uint64_t offset = definitions == nullptr ? 0 : definitions->sh_offset;
    for (size_t i = 0; definitions != nullptr && i < definitions->sh_info; ++i) {
      const auto definition = at<Elf64_Verdef>(offset);
      const auto name = at<Elf64_Verdaux>(offset + definition.vd_aux);
      if ((definition.vd_flags & VER_FLG_BASE) == 0)
        out[definition.vd_ndx] = text(*definitions, name.vda_name);
      offset += definition.vd_next;
    }
    return out;
  }

private:
  template <typename T> T at(uint64_t offset) const {
    T out{};
    if (offset <= bytes_.size() && sizeof(T) <= bytes_.size() - offset)
      memcpy(&out, bytes_.data() + offset, sizeof(T));
    return out;
  }
  const Elf64_Shdr* section(uint32_t type) const {
    const auto found = std::ranges::find(sections_, type, &Elf64_Shdr::sh_type);
    return found == sections_.end() ? nullptr : &*found;
  }
  // From the string table that belongs to `owner`.
  std::string text(const Elf64_Shdr& owner, uint64_t offset) const {
    if (owner.sh_link >= sections_.size())
      return {};
    const uint64_t start = sections_[owner.sh_link].sh_offset + offset;
    if (start >= bytes_.size())
      return {};
    return std::string(bytes_.data() + start,
                       strnlen(bytes_.data() + start, bytes_.size() - start));
  }

  std::string_view bytes_;
  std::vector<Elf64_Shdr> sections_;
};

// One library that adverb stands in front of.
struct Installed {
  void* handle = nullptr; // kept open: the command ends soon
  std::string path;
  std::string newest; // version node
};

// Orders IBVERBS_1.9 before IBVERBS_1.10.
bool older(const std::string& a, const std::string& b) {
  return strverscmp(a.c_str(), b.c_str()) < 0;
}

Installed find_installed(const char* soname, std::string_view node_prefix) {
  Installed out;
  out.handle = dlopen(soname, RTLD_LAZY | RTLD_LOCAL);
  link_map* map = nullptr;
  char path[PATH_MAX];
  if (out.handle == nullptr || dlinfo(out.handle, RTLD_DI_LINKMAP, &map) != 0 ||
      realpath(map->l_name, path) == nullptr)
    return out;
  out.path = path;
  for (const auto& [index, name] : ElfFile(out.path).version_names())
    if (name.starts_with(node_prefix) && isdigit(name[node_prefix.size()]) &&
        (out.newest.empty() || older(out.newest, name)))
      out.newest = name;
  return out;
}

// Hooks whose function exists in the installed library, but not at the hook's node.
std::vector<std::string> misplaced(const std::vector<Symbol>& hooks, const char* prefix,
                                   const Installed& installed, size_t& fitting) {
  std::vector<std::string> out;
  for (const Symbol& hook : hooks) {
    if (!hook.version.starts_with(prefix))
      continue;
    if (dlvsym(installed.handle, hook.name.c_str(), hook.version.c_str()) != nullptr)
      ++fitting;
    else if (dlsym(installed.handle, hook.name.c_str()) != nullptr)
      out.push_back(hook.name + "@" + hook.version);
  }
  return out;
}

} // namespace

void check_libraries(Report& report) {
  const Installed verbs = find_installed("libibverbs.so.1", "IBVERBS_");
  const Installed rdmacm = find_installed("librdmacm.so.1", "RDMACM_");
  if (verbs.handle == nullptr)
    report.fail("libibverbs", "not installed", "install libibverbs1 and ibverbs-providers");
  else
    report.ok("libibverbs", fmt::format("{}, nodes up to {}", verbs.path, verbs.newest));
  if (rdmacm.handle == nullptr)
    report.warn("librdmacm", "not installed", "programs that use rdma_cm need librdmacm1");
  else
    report.ok("librdmacm", fmt::format("{}, nodes up to {}", rdmacm.path, rdmacm.newest));

  std::string reason;
  const auto library = find_library(reason);
  if (!library) {
    report.fail("libadverb", reason, "install it beside this command");
    return;
  }
  report.ok("libadverb", *library);
  const std::vector<Symbol> hooks = ElfFile(*library).exports();
  size_t fitting = 0;
  std::vector<std::string> wrong;
  for (const auto& [prefix, installed] : {std::pair{"IBVERBS_", verbs}, {"RDMACM_", rdmacm}}) {
    if (installed.handle == nullptr)
      continue;
    const auto more = misplaced(hooks, prefix, installed, fitting);
    wrong.insert(wrong.end(), more.begin(), more.end());
  }
  std::string names;
  for (const std::string& name : wrong)
    names += (names.empty() ? "" : ", ") + name;
  if (!wrong.empty())
    report.fail("hooks", fmt::format("{} would never be called: {}", wrong.size(), names),
                "use a libadverb.so built for this rdma-core");
  else if (fitting == 0)
    report.fail("hooks", "libadverb.so has none that fits", "reinstall adverb");
  else
    report.ok("hooks", fmt::format("{} fit the installed libraries by name and version", fitting));
}

} // namespace adverb::tools
