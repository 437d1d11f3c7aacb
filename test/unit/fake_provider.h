// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A provider that writes down what it is asked to register, for a World in the place of the real
// one.
#pragma once

#include "provider/real.h"

#include <cerrno>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include <infiniband/verbs.h>

struct FakeProvider {
  FakeProvider();
  ~FakeProvider();
  FakeProvider(const FakeProvider&) = delete;
  FakeProvider& operator=(const FakeProvider&) = delete;

  // One at a time: verbs come without a word to say whose they are.
  static const adverb::provider::Real& table();

  struct Region {
    ibv_mr mr{};
    uint64_t iova = 0;
    unsigned access = 0;
  };

  // The live one under a key; null: there is none.
  const Region* find(uint32_t lkey) const {
    const auto it = regions.find(lkey);
    return it == regions.end() ? nullptr : it->second.get();
  }

  ibv_device device{};
  verbs_context extended{};
  ibv_context& context = extended.context;
  ibv_pd pd{};
  ibv_pd other_pd{};

  int refuse_regions = 0;            // errno of every registration
  int refuse_on_demand = 0;          // of those with IBV_ACCESS_ON_DEMAND
  ibv_odp_caps odp{};                // what the device says of on-demand paging
  uint32_t vendor = 0;               // what it says of who made it
  uint64_t queries = 0;              // times it was asked
  uint64_t limit = UINT64_MAX;       // bytes registered at a time; beyond, ENOMEM
  std::function<void()> on_register; // called before anything is done
  int refuse_windows = 0;            // of every memory window
  int refuse_dereg = 0;              // of every deregistration
  uint64_t registered = 0;
  uint32_t next_key = 0x100;
  std::map<uint32_t, std::unique_ptr<Region>> regions; // by lkey, which is the rkey too
};
