// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// adverb's view of one device context of the program and the protection domains in it.
#pragma once

#include "link/progress.h"
#include "link/slots.h"
#include "registration/regions.h"
#include "registration/staging.h"
#include "world/sync.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include <infiniband/verbs.h>

namespace adverb {
class World;
}

namespace adverb::model {

// A protection domain: the program's, and adverb's staging in it, and where peers prove themselves.
struct Pd {
  Pd(World& world, ibv_pd* pd);
  ibv_pd* verbs;
  registration::Staging staging;
  std::shared_ptr<link::Slots> slots; // links hold it for a while, but have nothing of it open then
};

class Context {
public:
  Context(World& world, ibv_context* context);

  World& world() const noexcept { return world_; }
  ibv_context* verbs() const noexcept { return verbs_; }
  const std::string& device() const noexcept { return device_; }
  registration::Regions& regions() noexcept { return regions_; }
  uint64_t copy_below() const noexcept { return copy_below_; } // bytes

  // The Pd of a protection domain, made at first use, kept until drop() has had the provider
  // deallocate it; returns the provider's answer.
  std::shared_ptr<Pd> pd(ibv_pd* pd);
  int drop(ibv_pd* pd, int (*dealloc)(ibv_pd*));

  // adverb's own PD in the program's context (kick queue pairs); nullptr if it cannot be had.
  ibv_pd* own_pd();

  // Of its queue pairs and receive queues each gets another.
  uint64_t next_queue() noexcept { return queues_.fetch_add(1, std::memory_order_relaxed); }

  // Whether the device leaves completions of a destroyed queue pair where they are; it is asked
  // once, at the first call, which may take milliseconds. No lock held.
  bool leaves_completions();
  bool posts_by_system_call() const noexcept { return posts_by_system_call_; }

  // The program has memory in `pd` that is not pinned. The first time, it is found out how long
  // the device takes to register some, unless a rule says what is to be copied: milliseconds, once
  // on each host until it boots. No lock held.
  void find_critical_size(ibv_pd* pd) noexcept;

  // adverb's own use of the device, once a queue pair may need a link.
  void use_device();
  // Lets replies and peers' requests proceed; cheap where there is nothing.
  void progress() {
    if (link::Progress* links = links_in_use_.load(std::memory_order_acquire))
      links->look();
  }
  // The program is about to sleep.
  void rest() {
    if (link::Progress* links = links_in_use_.load(std::memory_order_acquire))
      links->rest();
  }
  // Null: there is none.
  link::Progress* links() const noexcept { return links_in_use_.load(std::memory_order_acquire); }
  // Returns when no request of a peer that was being executed when it was called still is.
  void barrier(const link::Scope& scope = {});

  // The program is about to make a queue that adverb does not manage, and which would meet virtual
  // keys: regions that are registered from now on are pinned. EOPNOTSUPP, with a line in the log,
  // if some stand that are not. `what`: for people.
  int pin_from_now_on(std::string_view what);
  bool pins_all() const noexcept { return pins_all_.load(std::memory_order_relaxed); }

  // In a fork child: no link, no lock held. With `had_queues` the parent's queues may be used on
  // this context, which adverb cannot follow here: nothing new is unpinned or managed on it.
  void in_child(bool had_queues);
  bool passes_through() const noexcept { return passes_through_; }

  // Gives back everything adverb made in the program's context.
  void close();

private:
  void measure_critical_size(ibv_pd* pd);

  World& world_;
  ibv_context* verbs_;
  bool passes_through_ = false;
  Atomic<bool> pins_all_{false};
  std::string device_;
  uint64_t copy_below_;
  registration::Regions regions_;
  Mutex lock_;
  std::unordered_map<ibv_pd*, std::shared_ptr<Pd>> pds_;
  ibv_pd* own_pd_ = nullptr;
  Atomic<uint64_t> queues_{1};
  Mutex habits_lock_;
  const bool posts_by_system_call_;
  std::optional<bool> leaves_completions_;
  bool has_critical_size_ = false;
  std::shared_ptr<link::Progress> links_;
  Atomic<link::Progress*> links_in_use_{nullptr};
};

} // namespace adverb::model
