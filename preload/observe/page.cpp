// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "observe/page.h"

#include "observe/directory.h"
#include "observe/layout.h"
#include "observe/lifecycle.h"
#include "observe/log.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <new>
#include <pthread.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace adverb::observe {

namespace {

constinit std::atomic<Page*> g_page{&detail::private_page};
constinit std::atomic<bool> g_started{false};
constinit char g_path[512] = {}; // of the page's file, empty without one

/// Orders writers of the header's text. Held for a copy of some bytes, never over a system call.
constinit std::atomic_flag g_text_busy = ATOMIC_FLAG_INIT;

class TextLock {
public:
  TextLock() noexcept {
    while (g_text_busy.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~TextLock() { g_text_busy.clear(std::memory_order_release); }
  TextLock(const TextLock&) = delete;
  TextLock& operator=(const TextLock&) = delete;
};

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

/// What is known without a file; the private page is shown by own_snapshot() when none can be had.
void describe(PageHeader& header, const Identity& identity) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  char program[sizeof header.program] = {};
  const ssize_t size = readlink("/proc/self/exe", program, sizeof program - 1);
  const TextLock lock;
  header.layout = kLayout;
  header.pid = static_cast<uint32_t>(getpid());
  header.uid = static_cast<uint32_t>(geteuid());
  header.opened_ns =
      static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
  set_field(header.version, ADVERB_VERSION);
  set_field(header.program, std::string_view(program, size > 0 ? static_cast<size_t>(size) : 0));
  set_field(header.library, identity.library);
  set_field(header.policy, identity.policy);
  set_field(header.provider, identity.provider);
  append_device(header.devices, identity.devices);
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

/// Adds what `from` counted to `to` and zeroes it. A count that raced with the change of page may
/// arrive in `from` afterwards: finish() moves once more.
void move_tally(Tally& from, Tally& to) noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;
  for (size_t i = 0; i < kCounters; ++i)
    to.counters[i].fetch_add(from.counters[i].exchange(0, relaxed), relaxed);
  for (size_t i = 0; i < kGauges; ++i)
    to.gauges[i].fetch_add(from.gauges[i].exchange(0, relaxed), relaxed);
  for (size_t i = 0; i < kRuleSlots; ++i)
    to.rule_hits[i].fetch_add(from.rule_hits[i].exchange(0, relaxed), relaxed);
}

void open_page() {
  const auto name = own_page_name();
  const auto directories = own_directories();
  remove_stale(find_pages(directories, geteuid()));
  std::string why = "/proc or a directory for the page is missing";
  for (const std::string& directory : directories) {
    if (!name)
      break;
    const std::string path = directory + "/" + name->text();
    if (path.size() >= sizeof g_path)
      continue;
    Page* page = create_file(path, why);
    if (page == nullptr)
      continue;
    {
      const TextLock lock;
      // Byte copy of the text; the magic (first word, still 0 here) follows last.
      std::memcpy(static_cast<void*>(&page->header), &detail::private_page.header,
                  sizeof(PageHeader));
      page->header.start_time = name->start_time;
      page->header.pid_namespace = own_pid_namespace();
      page->header.magic.store(kPageMagic, std::memory_order_release);
      std::memcpy(g_path, path.c_str(), path.size() + 1);
      g_page.store(page, std::memory_order_release);
    }
    detail::tally.store(&page->tally, std::memory_order_release);
    move_tally(detail::private_page.tally, page->tally);
    return;
  }
  log_warn("no shared page, `adverb stat` will not show this process: {}", why);
}

} // namespace

void start(const Identity& identity) noexcept {
  if (g_started.load(std::memory_order_acquire) || g_started.exchange(true))
    return;
  const int saved = errno;
  try {
    install_fork_handler();
    detail::log_resume();
    describe(detail::private_page.header, identity);
    open_page();
    log_info("adverb {}: library {}, policy {}, provider {} {}", ADVERB_VERSION, identity.library,
             identity.policy, identity.provider, identity.devices);
  } catch (...) {
    log_warn("no shared page, `adverb stat` will not show this process: out of memory");
  }
  errno = saved;
}

void add_device(std::string_view name) noexcept {
  const TextLock lock;
  append_device(g_page.load(std::memory_order_acquire)->header.devices, name);
}

void label_rule(size_t slot, std::string_view label) noexcept {
  if (slot >= kRuleSlots)
    return;
  const TextLock lock;
  set_field(g_page.load(std::memory_order_acquire)->header.rule_labels[slot], label);
}

void after_fork_child() noexcept {
  Page* page = g_page.load(std::memory_order_relaxed);
  g_text_busy.clear();
  if (page != &detail::private_page) {
    // Only the rules' names are worth keeping; the rest is said anew by start().
    for (size_t i = 0; i < kRuleSlots; ++i)
      std::memcpy(detail::private_page.header.rule_labels[i], page->header.rule_labels[i],
                  kRuleLabelBytes);
  }
  std::memset(detail::private_page.header.devices, 0, sizeof(PageHeader::devices));
  std::memset(static_cast<void*>(&detail::private_page.tally), 0, sizeof(Tally));
  g_page.store(&detail::private_page, std::memory_order_relaxed);
  detail::tally.store(&detail::private_page.tally, std::memory_order_release);
  if (page != &detail::private_page)
    munmap(static_cast<void*>(page), sizeof(Page));
  g_path[0] = '\0';
  g_started.store(false, std::memory_order_relaxed);
  detail::log_silence();
  detail::log_forget();
  detail::exit_forget();
}

void install_fork_handler() noexcept {
  static constinit std::atomic<bool> installed{false};
  if (!installed.exchange(true))
    pthread_atfork(nullptr, nullptr, after_fork_child);
}

namespace detail {

bool started() noexcept {
  return g_started.load(std::memory_order_acquire);
}

void gather_late_counts() noexcept {
  Page* page = g_page.load(std::memory_order_acquire);
  if (page != &private_page)
    move_tally(private_page.tally, page->tally);
}

void unlink_page() noexcept {
  const Page* page = g_page.load(std::memory_order_acquire);
  // A child made by a bare clone() never ran after_fork_child(): the page is still its parent's.
  if (g_path[0] != '\0' && page->header.pid == static_cast<uint32_t>(getpid()))
    unlink(g_path);
}

} // namespace detail

} // namespace adverb::observe
