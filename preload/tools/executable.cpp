// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "tools/executable.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <elf.h>
#include <fstream>
#include <vector>

namespace adverb::tools {
namespace {

constexpr size_t longest_loader = 4096;
constexpr size_t longest_shebang = 256; // as the kernel reads it
constexpr size_t most_segments = 1024;

bool read_at(std::ifstream& file, uint64_t offset, void* bytes, size_t count) {
  file.clear();
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(static_cast<char*>(bytes), static_cast<std::streamsize>(count));
  return file.gcount() == static_cast<std::streamsize>(count);
}

Executable foreign(std::string problem) {
  return {Kind::foreign, {}, {}, std::move(problem)};
}

Executable inspect_elf(std::ifstream& file) {
  Elf64_Ehdr header{};
  if (!read_at(file, 0, &header, sizeof(header)))
    return foreign("its ELF header is cut short");
  if (header.e_ident[EI_CLASS] != ELFCLASS64)
    return foreign("it is a 32-bit program and libadverb.so is a 64-bit library");
  if (header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_machine != EM_X86_64)
    return foreign("it is a program for another machine");
  if (header.e_type != ET_EXEC && header.e_type != ET_DYN)
    return foreign("it is not an executable ELF file");
  if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum > most_segments)
    return foreign("its program headers are malformed");
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  if (!read_at(file, header.e_phoff, segments.data(), segments.size() * sizeof(Elf64_Phdr)))
    return foreign("its program headers are cut short");
  Executable result{Kind::elf, {}, {}, {}};
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_INTERP)
      continue;
    if (segment.p_filesz > longest_loader)
      return foreign("the name of its loader is malformed");
    result.loader.resize(segment.p_filesz);
    if (!read_at(file, segment.p_offset, result.loader.data(), result.loader.size()))
      return foreign("the name of its loader is cut short");
    result.loader.resize(strnlen(result.loader.data(), result.loader.size()));
  }
  return result;
}

Executable inspect_script(std::ifstream& file) {
  char bytes[longest_shebang];
  file.clear();
  file.seekg(2);
  file.read(bytes, sizeof(bytes));
  std::string line(bytes, static_cast<size_t>(file.gcount()));
  line.resize(std::min(line.find('\n'), line.size()));
  constexpr const char* blank = " \t\r";
  const size_t start = line.find_first_not_of(blank);
  if (start == line.npos)
    return {Kind::other, {}, {}, {}};
  const size_t stop = std::min(line.find_first_of(blank, start), line.size());
  Executable result{Kind::script, line.substr(start, stop - start), {}, {}};
  const size_t argument = line.find_first_not_of(blank, stop);
  if (argument != line.npos)
    result.argument = line.substr(argument, line.find_last_not_of(blank) + 1 - argument);
  return result;
}

} // namespace

Executable inspect(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return {Kind::unreadable, {}, {}, strerror(errno)};
  char magic[SELFMAG] = {};
  file.read(magic, sizeof(magic));
  const auto length = static_cast<size_t>(file.gcount());
  if (length == sizeof(magic) && memcmp(magic, ELFMAG, SELFMAG) == 0)
    return inspect_elf(file);
  if (length >= 2 && magic[0] == '#' && magic[1] == '!')
    return inspect_script(file);
  return {Kind::other, {}, {}, {}};
}

std::string own_loader() {
  return inspect("/proc/self/exe").loader;
}

} // namespace adverb::tools
