// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A model of translation misses: the setting ADVERB_LOOPBACK_TRANSLATIONS. An adapter keeps the
// translations of some memory pages; the others it fetches over PCIe. README.md has the grammar,
// and what the model leaves out.
//
// Who executes what: no thread plays the device of the target. The thread of the initiator copies
// into and out of the target's memory, in whichever process it runs: the caller of ibv_post_send,
// or the progress thread of the process that sends. The stall of the target's device therefore
// happens in that thread, between the checks of a request and its copy. Until the stall is over, no
// byte moves, nothing completes, and no later request of the queue pair begins.
//
// The state is the target's all the same. The cache lies in the arena of the process that opened
// the device, its geometry and penalty are those of that process's setting, and hits and misses
// count in that process's slot. All initiators of a target share its cache.
#pragma once
#include "shm.h"

#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace adverb::loopback {

class Process;

// README.md says where the defaults are from.
struct TranslationSetting {
  uint64_t entries = 4096; // translations kept
  uint64_t ways = 8;       // of a set
  uint64_t page = 4096;    // bytes that one translation covers
  uint64_t penalty_ns = 1000;
  bool operator==(const TranslationSetting&) const = default;
};

// Reads a setting, such as "entries=64,penalty=2us". Returns false if a word is wrong, and then
// `complaint` names the word and the reason.
bool parse_translations(std::string_view text, TranslationSetting& setting, std::string& complaint);

// The cache of a device as one process opened it, in the arena of that process. All but the pages
// is written before a queue pair refers to the cache.
struct TranslationCache {
  pthread_mutex_t mutex; // guards the pages; not held during a stall
  uint64_t sets;
  uint64_t ways;
  uint64_t page_shift;
  uint64_t penalty_ns;
  // Page + 1, 0 if empty; `ways` of each set, the most recently used first.
  uint64_t* pages() { return reinterpret_cast<uint64_t*>(this + 1); }
};

// The caches of the devices that a process has open. Whoever opens a device again shares its cache,
// as all users of an adapter do, and as adverb and the program it is loaded into do.
class TranslationCaches {
public:
  // The arena offset of the cache of a device; 0 if there is no memory for it.
  uint64_t open(Process& process, uint32_t device, const TranslationSetting& setting);
  // No queue pair refers to the cache any more.
  void close(Process& process, uint64_t offset);

private:
  struct Cache {
    uint32_t device;
    TranslationSetting setting;
    uint64_t offset;
    uint32_t users;
  };
  std::mutex mutex_;
  std::vector<Cache> caches_;
};

// The target's device translates a range of the target's memory, and stalls for what it misses.
void translate(TranslationCache& cache, ProcessSlot& owner, uint64_t address, uint64_t length);

} // namespace adverb::loopback
