// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// adverb's view of one device context of the program and the protection domains in it.
#pragma once

#include "link/device.h"
#include "model/table.h"
#include "registration/regions.h"
#include "registration/staging.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include <infiniband/verbs.h>

namespace adverb::model {

class Cq;
class Qp;
class Srq;

// A protection domain: the program's, and adverb's staging in it.
struct Pd {
  explicit Pd(ibv_pd* pd) : verbs(pd), staging(pd) {}
  ibv_pd* verbs;
  registration::Staging staging;
};

class Context {
public:
  explicit Context(ibv_context* context);

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

  // adverb's own context of the device, once a queue pair may need a link; see link/device.h.
  void use_device();
  // Lets replies and peers' requests proceed; cheap where there is nothing.
  void progress() {
    if (link::Device* device = device_in_use_.load(std::memory_order_acquire))
      device->progress();
  }
  // Returns when no request of a peer that was being executed when it was called still is.
  void barrier();

  // In a fork child: no link, no lock held. With `had_queues` the parent's queues may be used on
  // this context, which adverb cannot follow here: nothing new is unpinned or managed on it.
  void in_child(bool had_queues);
  bool passes_through() const noexcept { return passes_through_; }

  // Gives back everything adverb made in the program's context.
  void close();

private:
  ibv_context* verbs_;
  bool passes_through_ = false;
  std::string device_;
  uint64_t copy_below_;
  registration::Regions regions_;
  std::mutex lock_;
  std::unordered_map<ibv_pd*, std::shared_ptr<Pd>> pds_;
  ibv_pd* own_pd_ = nullptr;
  std::shared_ptr<link::Device> shared_device_;
  std::atomic<link::Device*> device_in_use_{nullptr};
};

// Everything managed, by the pointer the program holds. Lookups take a shared lock of one shard.
struct Objects {
  static Objects& get();

  Table<Context> contexts;
  Table<Cq> cqs;
  Table<Srq> srqs;
  Table<Qp> qps;
};

// The managed context of a device context; nullptr: not managed.
std::shared_ptr<Context> find(ibv_context* context);
// Also one that passes new objects through: for what was made on it before.
std::shared_ptr<Context> find_any(ibv_context* context);

// In a fork child: queues of the parent are passed through from now on; a context on which it had
// made none is managed anew, as daemons want that open the device before they fork.
void after_fork_child();

} // namespace adverb::model
