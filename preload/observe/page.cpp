// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "observe/page.h"

#include "observe/directory.h"
#include "observe/layout.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace adverb::observe {

namespace {

template <size_t N> void set_field(char (&to)[N], std::string_view text) noexcept {
  const size_t size = std::min(text.size(), N - 1);
  std::memcpy(to, text.data(), size);
  std::memset(to + size, 0, N - size);
}

void append_device(char (&list)[512], std::string_view name) noexcept {
  const size_t used = strnlen(list, sizeof list);
  const std::string_view held(list, used);
  for (size_t at = held.find(name); at != std::string_view::npos; at = held.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at == 0 || held[at - 1] == ' ') && (end == used || held[end] == ' '))
      return;
  }
  if (name.empty() || used + 1 + name.size() >= sizeof list)
    return;
  char* to = list + used;
  if (used != 0)
    *to++ = ' ';
  std::memcpy(to, name.data(), name.size());
}

/// A new zeroed file of a page's size that is ours alone, mapped; null with `why` set.
Page* create_file(const std::string& path, std::string& why) {
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  int fd = open(path.c_str(), flags, 0600);
  if (fd < 0 && errno == EEXIST) {
    // Left by what this process was before an exec, or put there by somebody else; in a sticky
    // directory only the former can be unlinked.
    unlink(path.c_str());
    fd = open(path.c_str(), flags, 0600);
  }
  if (fd < 0) {
    why = path + ": " + std::strerror(errno);
    return nullptr;
  }
  // Reserve the memory now: a full /dev/shm must fail here, not as SIGBUS at some later count.
  void* map = MAP_FAILED;
  int error = posix_fallocate(fd, 0, sizeof(Page));
  if (error == 0) {
    map = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    error = map == MAP_FAILED ? errno : 0;
  }
  close(fd);
  if (error != 0) {
    why = path + ": " + std::strerror(error);
    unlink(path.c_str());
    return nullptr;
  }
  return static_cast<Page*>(map);
}

} // namespace

class SharedPage::TextLock {
public:
  explicit TextLock(std::atomic_flag& busy) noexcept : busy_(busy) {
    while (busy_.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~TextLock() { busy_.clear(std::memory_order_release); }
  TextLock(const TextLock&) = delete;
  TextLock& operator=(const TextLock&) = delete;

private:
  std::atomic_flag& busy_;
};

/// What is known without a file; shown by the statistics when none can be had.
void SharedPage::describe(const Identity& identity) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  char program[sizeof own_.program] = {};
  const ssize_t size = readlink("/proc/self/exe", program, sizeof program - 1);
  const TextLock lock(text_busy_);
  own_.layout = kLayout;
  own_.pid = static_cast<uint32_t>(getpid());
  own_.uid = static_cast<uint32_t>(geteuid());
  own_.opened_ns =
      static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
  set_field(own_.version, ADVERB_VERSION);
  set_field(own_.program, std::string_view(program, size > 0 ? static_cast<size_t>(size) : 0));
  set_field(own_.library, identity.library);
  set_field(own_.policy, identity.policy);
  set_field(own_.provider, identity.provider);
  append_device(own_.devices, identity.devices);
}

void SharedPage::open() {
  const auto name = own_page_name();
  const auto directories = own_directories();
  remove_stale(find_pages(directories, geteuid()));
  std::string why = "/proc or a directory for the page is missing";
  for (const std::string& directory : directories) {
    if (!name)
      break;
    const std::string path = directory + "/" + name->text();
    if (path.size() >= sizeof path_)
      continue;
    Page* page = create_file(path, why);
    if (page == nullptr)
      continue;
    {
      const TextLock lock(text_busy_);
      // Byte copy of the text; the magic (first word, still 0 here) follows last.
      std::memcpy(static_cast<void*>(&page->header), &own_, sizeof(PageHeader));
      page->header.start_time = name->start_time;
      page->header.pid_namespace = own_pid_namespace();
      page->header.magic.store(kPageMagic, std::memory_order_release);
      std::memcpy(path_, path.c_str(), path.size() + 1);
      page_ = page;
      header_.store(&page->header, std::memory_order_release);
    }
    counters_.move_to(page->tally);
    peers_.move_to(page->peers);
    trace_.move_to(page->trace);
    return;
  }
  log_.warn("no shared page, `adverb stat` will not show this process: {}", why);
}

void SharedPage::start(const Identity& identity) noexcept {
  if (started() || started_.exchange(true))
    return;
  const int saved = errno;
  try {
    log_.resume();
    describe(identity);
    if (!kept_private_)
      open();
    log_.info("adverb {}: library {}, policy {}, provider {} {}", ADVERB_VERSION, identity.library,
              identity.policy, identity.provider, identity.devices);
  } catch (...) {
    log_.warn("no shared page, `adverb stat` will not show this process: out of memory");
  }
  errno = saved;
}

void SharedPage::add_device(std::string_view name) noexcept {
  const TextLock lock(text_busy_);
  append_device(header_.load(std::memory_order_acquire)->devices, name);
}

void SharedPage::tell_no_views(std::string_view why) noexcept {
  const TextLock lock(text_busy_);
  set_field(header_.load(std::memory_order_acquire)->no_views, why);
}

void SharedPage::label_rule(size_t slot, std::string_view label) noexcept {
  if (slot >= kRuleSlots)
    return;
  const TextLock lock(text_busy_);
  set_field(header_.load(std::memory_order_acquire)->rule_labels[slot], label);
}

void SharedPage::in_child() noexcept {
  text_busy_.clear();
  PageHeader* parent = header_.load(std::memory_order_relaxed);
  if (parent != &own_) {
    // Only the rules' names are worth keeping; the rest is said anew by start().
    std::memcpy(own_.rule_labels, parent->rule_labels, sizeof own_.rule_labels);
  }
  std::memset(own_.devices, 0, sizeof own_.devices);
  std::memset(own_.no_views, 0, sizeof own_.no_views);
  header_.store(&own_, std::memory_order_relaxed);
  counters_.in_child();
  peers_.in_child();
  trace_.in_child();
  if (parent != &own_)
    munmap(static_cast<void*>(page_), sizeof(Page));
  page_ = nullptr;
  path_[0] = '\0';
  started_.store(false, std::memory_order_relaxed);
  renew(finishing_);
  finished_ = false;
}

void SharedPage::unlink_file() noexcept {
  // A child made by a bare clone() never ran in_child(): the page is still its parent's.
  if (path_[0] != '\0' && header().pid == static_cast<uint32_t>(getpid()))
    unlink(path_);
}

} // namespace adverb::observe
