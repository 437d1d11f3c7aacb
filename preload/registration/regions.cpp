// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/regions.h"

#include <algorithm>
#include <cassert>
#include <mutex>

namespace adverb::registration {

namespace {

constexpr unsigned remote_rights =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

} // namespace

Regions::Regions(World& world, ibv_context* context)
    : keys_(world, context), windows_(world), grants_(world) {
  const Means means{world, keys_, windows_, grants_};
  assert(makers.size() == policy::backends.size());
  for (size_t row = 0; row < makers.size(); ++row) {
    assert(makers[row].name == policy::backends[row].name);
    backends_.push_back(makers[row].make(policy::backends[row], means));
  }
}

Backend& Regions::backend(const policy::BackendTraits& traits) const noexcept {
  const auto row = static_cast<size_t>(&traits - policy::backends.data());
  assert(row < backends_.size());
  return *backends_[row];
}

Refusal Regions::add(Backend& backend, const Wanted& wanted, ibv_mr*& mr) {
  std::unique_ptr<Region> region;
  if (const Refusal refusal = backend.add(wanted, region))
    return refusal;
  assert(region->mr != nullptr);
  region->backend = &backend;
  assert(region->key == nullptr || region->key->value() == region->mr->lkey);
  mr = region->mr;
  const Unique held(lock_);
  list(std::move(region), held);
  return {};
}

void Regions::list(std::unique_ptr<Region> region, const Unique& held) {
  assert(held.owns_lock());
  if (spare_lives_.empty())
    spare_lives_.push_back(&lives_.emplace_back(0));
  virtual_keys_ += region->key != nullptr ? 1 : 0;
  region->life = spare_lives_.back();
  spare_lives_.pop_back();
  by_key_[region->mr->lkey] = region.get();
  by_mr_[region->mr] = std::move(region);
}

Ended Regions::remove(ibv_mr* mr) {
  Ended ended;
  {
    const Unique held(lock_);
    const auto it = by_mr_.find(mr);
    if (it == by_mr_.end())
      return ended;
    ended.known = true;
    ended.region = std::move(it->second);
    virtual_keys_ -= ended.region->key != nullptr ? 1 : 0;
    ++*ended.region->life;
    spare_lives_.push_back(ended.region->life);
    by_mr_.erase(it);
    if (const auto key = by_key_.find(mr->lkey);
        key != by_key_.end() && key->second == ended.region.get())
      by_key_.erase(key);
  }
  ended.rc = ended.region->backend->end(*ended.region);
  if (ended.rc == 0) {
    ended.key = ended.region->key;
  } else {
    const Unique held(lock_);
    list(std::move(ended.region), held);
  }
  return ended;
}

Ended Regions::change(ibv_mr* mr, const Change& change) {
  Ended ended;
  Region* region = nullptr;
  {
    const Shared held(lock_);
    const auto it = by_mr_.find(mr);
    if (it == by_mr_.end())
      return ended;
    region = it->second.get();
  }
  ended.known = true;
  const uint32_t before = mr->lkey;
  Unique held(lock_, std::defer_lock);
  ended.rc = region->backend->change(*region, change, held);
  if (ended.rc != 0)
    return ended;
  assert(held.owns_lock());
  if (mr->lkey != before) {
    if (const auto old = by_key_.find(before); old != by_key_.end() && old->second == region)
      by_key_.erase(old);
    by_key_[mr->lkey] = region;
  }
  ended.key = region->key;
  return ended;
}

Region* Regions::find_key(uint32_t key, const Shared& /*held*/) const {
  const auto it = by_key_.find(key);
  return it == by_key_.end() ? nullptr : it->second;
}

Region* Regions::find_virtual(uint32_t key, const Shared& held) const {
  Region* region = find_key(key, held);
  return region != nullptr && region->key != nullptr ? region : nullptr;
}

int Regions::local(const ibv_pd* pd, const ibv_sge& sge, unsigned rights, Span& span) const {
  const Shared held(lock_);
  const Region* region = find_key(sge.lkey, held);
  if (region == nullptr)
    return ENOENT;
  if (const int rc = check(*region, pd, sge.addr, sge.length, rights); rc != 0)
    return rc;
  span.data = region->at(sge.addr);
  return 0;
}

int Regions::remote(const ibv_pd* pd, uint32_t key, uint64_t address, uint64_t length,
                    unsigned right, std::byte*& data) const {
  const Shared held(lock_);
  const Region* region = find_virtual(key, held);
  if (region == nullptr)
    return ENOENT;
  if (const int rc = check(*region, pd, address, length, right); rc != 0)
    return rc;
  data = region->at(address);
  return 0;
}

bool Regions::any_remote() const {
  const Shared held(lock_);
  return std::any_of(by_mr_.begin(), by_mr_.end(), [](const auto& entry) {
    return (entry.second->access & remote_rights) != 0 && entry.second->key != nullptr;
  });
}

bool Regions::is_virtual(uint32_t key) const {
  const Shared held(lock_);
  return find_virtual(key, held) != nullptr;
}

std::shared_ptr<Key> Regions::key_token(uint32_t key) const {
  const Shared held(lock_);
  const Region* region = find_virtual(key, held);
  return region == nullptr ? nullptr : region->key;
}

int Regions::localize_virtual(const Use& use, ibv_sge& sge, Hold& hold) {
  const Shared held(lock_);
  Region* region = find_virtual(sge.lkey, held);
  if (region == nullptr)
    return 0; // nothing to translate: the device judges the key as it stands
  return region->backend->localize(*region, use, sge, hold);
}

void Regions::release(Staging& staging, Hold& hold) noexcept {
  if (hold.block)
    staging.give(hold.block);
  if (hold.backend != nullptr)
    hold.backend->release(hold);
  hold = {};
}

bool Regions::deliver(const Hold& hold, size_t bytes) const noexcept {
  assert(hold.life != nullptr);
  const Shared held(lock_);
  return *hold.life == hold.number && hold.backend->deliver(hold, bytes);
}

int Regions::grant(uint32_t key, uint64_t address, uint64_t length, unsigned access,
                   std::shared_ptr<Grant>& grant) {
  const Shared held(lock_);
  Region* region = find_virtual(key, held);
  if (region == nullptr)
    return ENOENT;
  if (!inside(*region, address, length))
    return ERANGE;
  if (!region->backend->traits().lends)
    return EOPNOTSUPP;
  return region->backend->lend(*region, address, length, access, grant);
}

void Regions::revoke(const std::shared_ptr<Grant>& grant) noexcept {
  grant->backend->take_back(grant);
}

void Regions::in_child() {
  renew(lock_);
  windows_.in_child();
  grants_.in_child();
  keys_.in_child();
}

void Regions::close() {
  const Unique held(lock_);
  by_key_.clear();
  by_mr_.clear();
  virtual_keys_ = 0;
  keys_.close();
}

} // namespace adverb::registration
