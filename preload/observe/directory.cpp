// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "observe/directory.h"

#include "observe/layout.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <sys/stat.h>
#include <unistd.h>

namespace adverb::observe {

namespace {

/// The whole of a /proc file (their size is not known beforehand); nothing if it cannot be read.
std::optional<std::string> read_all(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return std::nullopt;
  // Not on the stack: this may be a thread of the program's that has little.
  constexpr size_t piece = 16384;
  std::string text;
  size_t bytes = 0;
  ssize_t n;
  do {
    text.resize(bytes + piece);
    n = read(fd, text.data() + bytes, piece);
    bytes += n > 0 ? static_cast<size_t>(n) : 0;
  } while (n > 0 || (n < 0 && errno == EINTR));
  text.resize(bytes);
  close(fd);
  return n < 0 ? std::nullopt : std::optional(text);
}

/// Start time out of /proc/PID/stat. The command name may hold blanks and parentheses, so count
/// from its last closing one: what follows is field 3.
std::optional<uint64_t> start_time_of(const std::string& pid) {
  const auto stat = read_all("/proc/" + pid + "/stat");
  if (!stat)
    return std::nullopt;
  size_t at = stat->rfind(')');
  if (at == std::string::npos)
    return std::nullopt;
  ++at;
  for (int field = 3; field <= 22; ++field) {
    at = stat->find_first_not_of(' ', at);
    if (at == std::string::npos)
      return std::nullopt;
    if (field < 22)
      at = stat->find(' ', at);
    if (at == std::string::npos)
      return std::nullopt;
  }
  uint64_t ticks = 0;
  const char* begin = stat->data() + at;
  if (std::from_chars(begin, stat->data() + stat->size(), ticks).ec != std::errc())
    return std::nullopt;
  return ticks;
}

bool alive(const PageName& name, const std::string& path) {
  const std::string pid = std::to_string(name.pid);
  if (const auto ticks = start_time_of(pid)) {
    if (*ticks != name.start_time)
      return false;
    // A zombie has no mappings, and after an exec the process may know nothing of the page. Where
    // its mappings may not be read (other capabilities), believe the process.
    const auto maps = read_all("/proc/" + pid + "/maps");
    return !maps || maps->find(path.substr(path.rfind('/'))) != std::string::npos;
  }
  return kill(name.pid, 0) == 0 || errno == EPERM;
}

/// Whether the file is whose it says it is, as far as names and owners go: anybody may make files
/// here.
bool is_its_own(int directory, const char* file, const PageName& name) {
  struct stat now;
  return fstatat(directory, file, &now, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(now.st_mode) &&
         now.st_uid == name.uid;
}

/// Whether it is of a process that runs, as the same user: an owner can give its file any name.
bool runs(const PageName& name) {
  const std::string pid = std::to_string(name.pid);
  struct stat now;
  return stat(("/proc/" + pid).c_str(), &now) == 0 && now.st_uid == name.uid &&
         start_time_of(pid) == name.start_time;
}

/// Adds to `out` unless it is there under the same or another name.
void add_directory(std::vector<std::string>& out, const std::string& path) {
  struct stat now;
  if (stat(path.c_str(), &now) != 0 || !S_ISDIR(now.st_mode))
    return;
  for (const std::string& held : out) {
    struct stat other;
    if (stat(held.c_str(), &other) == 0 && other.st_dev == now.st_dev && other.st_ino == now.st_ino)
      return;
  }
  out.push_back(path);
}

} // namespace

std::string PageName::text() const {
  return "adverb." + std::to_string(uid) + "." + std::to_string(pid) + "." +
         std::to_string(start_time);
}

std::optional<PageName> parse_page_name(std::string_view file_name) {
  constexpr std::string_view prefix = "adverb.";
  if (file_name.substr(0, prefix.size()) != prefix)
    return std::nullopt;
  const char* at = file_name.data() + prefix.size();
  const char* end = file_name.data() + file_name.size();
  uint64_t parts[3] = {};
  for (uint64_t& part : parts) {
    if (&part != parts) {
      if (at == end || *at++ != '.')
        return std::nullopt;
    }
    const auto [next, error] = std::from_chars(at, end, part);
    if (error != std::errc())
      return std::nullopt;
    at = next;
  }
  if (at != end || parts[0] > UINT32_MAX || parts[1] == 0 || parts[1] > INT32_MAX)
    return std::nullopt;
  PageName name{static_cast<uid_t>(parts[0]), static_cast<pid_t>(parts[1]), parts[2]};
  return name.text() == file_name ? std::optional(name) : std::nullopt;
}

std::optional<PageName> own_page_name() {
  const auto ticks = start_time_of("self");
  if (!ticks)
    return std::nullopt;
  return PageName{geteuid(), getpid(), *ticks};
}

uint64_t own_pid_namespace() {
  struct stat now;
  return stat("/proc/self/ns/pid", &now) == 0 ? now.st_ino : 0;
}

std::vector<std::string> own_directories() {
  std::vector<std::string> out;
  if (const char* runtime = secure_getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime == '/')
    add_directory(out, runtime);
  add_directory(out, "/dev/shm");
  return out;
}

std::vector<std::string> search_directories(uid_t uid) {
  std::vector<std::string> out = own_directories();
  if (uid != 0) {
    add_directory(out, "/run/user/" + std::to_string(uid));
    return out;
  }
  if (DIR* users = opendir("/run/user")) {
    while (const dirent* entry = readdir(users)) {
      if (entry->d_name[0] != '.')
        add_directory(out, std::string("/run/user/") + entry->d_name);
    }
    closedir(users);
  }
  return out;
}

std::vector<pid_t> processes_with_pages(const std::vector<std::string>& directories) {
  std::vector<pid_t> out;
  for (const std::string& directory : directories) {
    const std::unique_ptr<DIR, int (*)(DIR*)> open_dir(opendir(directory.c_str()), closedir);
    while (const dirent* entry = open_dir ? readdir(open_dir.get()) : nullptr)
      if (const auto name = parse_page_name(entry->d_name);
          name && std::ranges::find(out, name->pid) == out.end() &&
          is_its_own(dirfd(open_dir.get()), entry->d_name, *name) && runs(*name))
        out.push_back(name->pid);
  }
  return out;
}

std::vector<FoundPage> find_pages(const std::vector<std::string>& directories, uid_t uid) {
  std::vector<FoundPage> out;
  for (const std::string& directory : directories) {
    const std::unique_ptr<DIR, int (*)(DIR*)> open_dir(opendir(directory.c_str()), closedir);
    if (!open_dir)
      continue;
    while (const dirent* entry = readdir(open_dir.get())) {
      const auto name = parse_page_name(entry->d_name);
      if (!name || (uid != 0 && name->uid != uid))
        continue;
      if (!is_its_own(dirfd(open_dir.get()), entry->d_name, *name))
        continue;
      const std::string path = directory + "/" + entry->d_name;
      out.push_back({path, *name, alive(*name, path)});
    }
  }
  std::sort(out.begin(), out.end(),
            [](const FoundPage& a, const FoundPage& b) { return a.name.pid < b.name.pid; });
  return out;
}

size_t remove_stale(const std::vector<FoundPage>& pages) {
  const uint64_t here = own_pid_namespace();
  size_t removed = 0;
  for (const FoundPage& page : pages) {
    if (page.live)
      continue;
    const int fd = open(page.path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
      continue;
    uint64_t home = 0;
    const bool read_home = pread(fd, &home, sizeof home, offsetof(PageHeader, pid_namespace)) ==
                           static_cast<ssize_t>(sizeof home);
    struct stat now;
    // A page without a namespace is one whose process died while making it, or is making it now.
    const bool settled = fstat(fd, &now) == 0 && time(nullptr) - now.st_mtime > 60;
    close(fd);
    if (read_home && home != 0 ? home == here : settled)
      removed += unlink(page.path.c_str()) == 0 ? 1 : 0;
  }
  return removed;
}

} // namespace adverb::observe
