// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "process.h"
#include "setting.h"

#include <algorithm>
#include <bit>
#include <cerrno>

namespace adverb::loopback {

namespace {

constexpr uint64_t kMostEntries = 1 << 24;
constexpr uint64_t kMostWays = 1024;
constexpr uint64_t kSmallestPage = 4096;
constexpr uint64_t kLargestPage = 1 << 30;
constexpr uint64_t kLongestPenaltyNs = 1'000'000;

Reason read_from(std::string_view text, uint64_t most, uint64_t& value, Reason otherwise) {
  if (const Reason reason = read_count(text, value); !reason.empty())
    return reason;
  return value == 0 || value > most ? otherwise : Reason();
}

Reason read_page(std::string_view text, uint64_t& value) {
  if (const Reason reason = read_count(text, value); !reason.empty())
    return reason;
  if (value < kSmallestPage || value > kLargestPage || !std::has_single_bit(value))
    return "a page has a power of two of bytes, from 4096 to 1073741824";
  return {};
}

// A stall holds its queue pair and all that wait for it, as a destroyer does.
Reason read_penalty(std::string_view text, uint64_t& ns) {
  if (const Reason reason = read_time(text, ns); !reason.empty())
    return reason;
  return ns > kLongestPenaltyNs ? Reason("a penalty is at most 1ms") : Reason();
}

Reason read_word(std::string_view name, std::string_view value, TranslationSetting& setting) {
  if (name == "entries")
    return read_from(value, kMostEntries, setting.entries, "entries are from 1 to 16777216");
  if (name == "ways")
    return read_from(value, kMostWays, setting.ways, "ways are from 1 to 1024");
  if (name == "page")
    return read_page(value, setting.page);
  if (name == "penalty")
    return read_penalty(value, setting.penalty_ns);
  return "the names are entries, ways, page and penalty";
}

// Makes `page` the most recently used of its set, in place of the least recently used if it was
// not there. A process that dies in between leaves a page twice, which costs a way only.
bool use_page(TranslationCache& cache, uint64_t page) {
  uint64_t* set = cache.pages() + page % cache.sets * cache.ways;
  uint64_t* end = set + cache.ways;
  uint64_t* found = std::find(set, end, page + 1);
  const bool hit = found != end;
  std::move_backward(set, hit ? found : end - 1, hit ? found + 1 : end);
  *set = page + 1;
  return hit;
}

size_t cache_bytes(const TranslationSetting& setting) {
  return sizeof(TranslationCache) + setting.entries * sizeof(uint64_t);
}

void init_cache(TranslationCache& cache, const TranslationSetting& setting) {
  init_robust(cache.mutex);
  cache.sets = setting.entries / setting.ways;
  cache.ways = setting.ways;
  cache.page_shift = static_cast<uint64_t>(std::countr_zero(setting.page));
  cache.penalty_ns = setting.penalty_ns;
}

// Busy, as the device's pipeline is; a sleep would take many times as long as a fetch.
void stall(uint64_t ns) {
  const uint64_t until = now_ns() + ns;
  while (now_ns() < until) {
  }
}

} // namespace

bool parse_translations(std::string_view text, TranslationSetting& setting,
                        std::string& complaint) {
  const auto read = [&](std::string_view name, std::string_view value) {
    return read_word(name, value, setting);
  };
  if (!read_words(text, complaint, read))
    return false;
  if (setting.entries % setting.ways != 0) {
    complaint = "'ways': the entries are no multiple of the ways";
    return false;
  }
  return true;
}

uint64_t TranslationCaches::open(Process& process, uint32_t device,
                                 const TranslationSetting& setting) {
  const std::lock_guard lock(mutex_);
  for (Cache& cache : caches_)
    if (cache.device == device && cache.setting == setting) {
      ++cache.users;
      return cache.offset;
    }
  const uint64_t offset = process.allocate(cache_bytes(setting));
  if (offset != 0) {
    init_cache(*process.at<TranslationCache>(offset), setting);
    caches_.push_back({device, setting, offset, 1});
  }
  return offset;
}

void TranslationCaches::close(Process& process, uint64_t offset) {
  const std::lock_guard lock(mutex_);
  const auto cache = std::find_if(caches_.begin(), caches_.end(),
                                  [&](const Cache& each) { return each.offset == offset; });
  if (cache == caches_.end() || --cache->users != 0)
    return;
  process.release(offset, cache_bytes(cache->setting));
  caches_.erase(cache);
}

void translate(TranslationCache& cache, ProcessSlot& owner, uint64_t address, uint64_t length) {
  const uint64_t first = address >> cache.page_shift;
  const uint64_t last = (address + length - 1) >> cache.page_shift;
  uint64_t hits = 0;
  {
    const RobustLock lock(cache.mutex);
    for (uint64_t page = first; page <= last; ++page)
      hits += use_page(cache, page) ? 1 : 0;
  }
  const uint64_t misses = last - first + 1 - hits;
  owner.translation_hits.fetch_add(hits, std::memory_order_relaxed);
  owner.translation_misses.fetch_add(misses, std::memory_order_relaxed);
  if (misses != 0)
    stall(misses * cache.penalty_ns);
}

} // namespace adverb::loopback

using namespace adverb::loopback;

extern "C" {

// For tests and benches, which find it by dlsym(). Says how many translations the devices of a
// process have hit and missed since it joined the fabric. Process 0 is the caller's. Returns 0 or
// an error number. Any process of the fabric may ask, and no call resets the counts.
int adverb_loopback_translations(pid_t pid, uint64_t* hits, uint64_t* misses) {
  Process* process = Process::current();
  if (process == nullptr)
    return errno;
  for (uint32_t i = 0; i < kMaxProcesses; ++i) {
    const ProcessSlot& slot = process->fabric().process[i];
    const bool asked = pid == 0 ? i == process->index() : slot.pid.load() == pid;
    if (!asked || !process->alive(i, slot.incarnation.load()))
      continue;
    *hits = slot.translation_hits.load(std::memory_order_relaxed);
    *misses = slot.translation_misses.load(std::memory_order_relaxed);
    return 0;
  }
  return ESRCH;
}
}
