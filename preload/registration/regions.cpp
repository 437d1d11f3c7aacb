// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/regions.h"
#include "memory/copy.h"
#include "registration/recalls.h"
#include "world/world.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <mutex>
#include <new>
#include <utility>

namespace adverb::registration {

namespace {

constexpr unsigned remote_rights =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

} // namespace

Regions::Regions(World& world, ibv_context* context)
    : world_(world), keys_(world, context), windows_(world),
      grants_(std::make_shared<Grants>(world)), views_(std::make_shared<Views>(world)) {
  const Means means{world, keys_, windows_, copied_, *grants_, *views_};
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

void Regions::meet(ibv_context* context, ibv_qp_type type) const {
  for (const auto& one : backends_)
    one->meet(context, type);
}

Refusal Regions::add(Backend& backend, const Wanted& wanted, ibv_mr*& mr) {
  std::unique_ptr<Region> region;
  if (const Refusal refusal = backend.add(wanted, region))
    return refusal;
  assert(region->mr != nullptr);
  region->backend = &backend;
  assert(region->key == nullptr || region->key->value() == region->mr->lkey);
  ibv_mr* const made = region->mr;
  try {
    const Unique held(lock_);
    list(region, held);
  } catch (...) { // the program is told of no region, and the device shall have none
    [[maybe_unused]] const int rc = backend.end(*region);
    throw;
  }
  mr = made;
  return {};
}

void Regions::list(std::unique_ptr<Region>& region, const Unique& held) {
  assert(held.owns_lock());
  // What needs memory comes first.
  if (region->life == nullptr && spare_lives_.empty()) {
    if (spare_lives_.capacity() == lives_.size()) // for all of them, when their regions have ended
      spare_lives_.reserve(std::max<size_t>(16, 2 * lives_.size()));
    spare_lives_.push_back(&lives_.emplace_back());
  }
  Region*& by_key = by_key_[region->mr->lkey]; // a new one is of no region
  if (region->served != nullptr)
    by_served_[region->served->value()] = region.get();
  const auto place = by_mr_.try_emplace(region->programs()).first;
  try {
    overlaps_.add(Overlaps::of(*region));
  } catch (...) {
    by_mr_.erase(place);
    throw;
  }
  if (region->life == nullptr) {
    region->life = spare_lives_.back();
    spare_lives_.pop_back();
  }
  region->life->region = region.get();
  virtual_keys_ += region->key != nullptr ? 1 : 0;
  if (region->key != nullptr)
    filter_.add(region->key->value());
  by_key = region.get();
  place->second = std::move(region);
}

std::unique_ptr<Region> Regions::unlist(ibv_mr* mr, const Unique& held) {
  assert(held.owns_lock());
  const auto it = by_mr_.find(mr);
  if (it == by_mr_.end())
    return nullptr;
  std::unique_ptr<Region> region = std::move(it->second);
  by_mr_.erase(it);
  ++changes_;
  virtual_keys_ -= region->key != nullptr ? 1 : 0;
  if (region->key != nullptr)
    filter_.remove(region->key->value());
  if (region->served != nullptr)
    by_served_.erase(region->served->value());
  overlaps_.remove(Overlaps::of(*region));
  region->life->region = nullptr;
  if (const auto key = by_key_.find(region->mr->lkey);
      key != by_key_.end() && key->second == region.get())
    by_key_.erase(key);
  return region;
}

Ended Regions::remove(ibv_mr* mr) {
  Ended ended;
  {
    const Unique held(lock_);
    ended.region = unlist(mr, held);
    if (ended.region == nullptr)
      return ended;
    ended.known = true;
    ++ended.region->life->number;
    spare_lives_.push_back(std::exchange(ended.region->life, nullptr));
  }
  ended.rc = ended.region->backend->end(*ended.region);
  if (ended.rc == 0) {
    ended.key = ended.region->key != nullptr ? ended.region->key : ended.region->served;
    for (Region* former = ended.region->former.get(); former != nullptr;
         former = former->former.get()) [[maybe_unused]]
      const int rc = former->backend->end(*former);
  } else {
    const Unique held(lock_);
    list(ended.region, held);
  }
  return ended;
}

Ended Regions::change(ibv_mr* mr, const Change& what, const Choose& choose) {
  Ended ended;
  Region* region = nullptr;
  {
    const Unique held(lock_);
    const auto it = by_mr_.find(mr);
    if (it == by_mr_.end())
      return ended;
    region = it->second.get();
    ended.key = region->key != nullptr ? region->key : end_served(*region, held);
  }
  ended.known = true;
  ended.rc = change(*region, what, choose);
  return ended;
}

int Regions::change(Region& region, const Change& what, const Choose& choose) {
  Backend* backend = region.backend;
  if (region.key != nullptr) {
    if (!is_plain(what)) {
      errno = EINVAL;
      return IBV_REREG_MR_ERR_INPUT;
    }
    const Wanted wanted = changed(region, what);
    if (const int why = choose(wanted, backend); why != 0) {
      errno = why;
      return IBV_REREG_MR_ERR_CMD;
    }
    if (backend != region.backend)
      return move(region, wanted, *backend);
  }
  const uint32_t before = region.mr->lkey;
  const auto reached = Overlaps::of(region);
  Unique held(lock_, std::defer_lock);
  if (const int rc = backend->change(region, what, held); rc != 0)
    return rc;
  assert(held.owns_lock());
  ++changes_;
  overlaps_.remove(reached);
  overlaps_.add(Overlaps::of(region));
  region.overlaps = 0;
  if (region.mr->lkey != before) {
    if (const auto old = by_key_.find(before); old != by_key_.end() && old->second == &region)
      by_key_.erase(old);
    by_key_[region.mr->lkey] = &region;
  }
  if (region.former != nullptr)
    tell_former(region);
  return 0;
}

// The region becomes another backend's: that makes one anew, under the MR that the program holds.
int Regions::move(Region& region, const Wanted& wanted, Backend& to) {
  std::unique_ptr<Region> now;
  if (const Refusal refusal = to.add(wanted, now)) {
    errno = refusal.error;
    return IBV_REREG_MR_ERR_CMD;
  }
  now->backend = &to;
  const Unique held(lock_);
  now->life = region.life;
  now->former = unlist(region.programs(), held);
  tell_former(*now);
  list(now, held);
  return 0;
}

// What it was before has in use what the region, as it is now, may allow or not; and the program's
// MR is still that one's.
void Regions::tell_former(Region& region) {
  for (Region* former = region.former.get(); former != nullptr; former = former->former.get())
    former->backend->leave(*former, region);
  *region.programs() = *region.mr;
}

Region* Regions::find_key(uint32_t key, const Shared& /*held*/) const {
  const auto it = by_key_.find(key);
  return it == by_key_.end() ? nullptr : it->second;
}

Region* Regions::find_virtual(uint32_t key, const Shared& held) const {
  Region* region = find_key(key, held);
  return region != nullptr && region->key != nullptr ? region : nullptr;
}

// What a peer's request may name.
Region* Regions::find_for_peer(uint32_t key, const Shared& held) const {
  if (Region* const region = find_virtual(key, held); region != nullptr)
    return region;
  const auto it = by_served_.find(key);
  return it == by_served_.end() ? nullptr : it->second;
}

uint32_t Regions::serve(const ibv_pd* pd, uint32_t key) {
  const auto may_be_served = [pd](const Region* region) {
    return region != nullptr && region->key == nullptr && region->former == nullptr &&
           same_pd(region->pd, pd) && (region->access & remote_rights) != 0 &&
           (region->access & IBV_ACCESS_ZERO_BASED) == 0;
  };
  {
    const Shared held(lock_);
    const Region* const region = find_key(key, held);
    if (!may_be_served(region))
      return 0;
    if (region->served != nullptr)
      return region->served->value();
  }
  std::shared_ptr<Key> served;
  if (keys_.take(served) != 0)
    return 0;
  const Unique held(lock_);
  const auto it = by_key_.find(key);
  Region* const region = it == by_key_.end() ? nullptr : it->second;
  if (!may_be_served(region)) // it has ended meanwhile
    return 0;
  if (region->served == nullptr) {
    by_served_.emplace(served->value(), region);
    region->served = std::move(served);
  }
  return region->served->value();
}

// What it meant is about to mean something else. Null: it has none.
std::shared_ptr<Key> Regions::end_served(Region& region, const Unique& held) {
  assert(held.owns_lock());
  if (region.served != nullptr)
    by_served_.erase(region.served->value());
  return std::exchange(region.served, nullptr);
}

int Regions::local(const ibv_pd* pd, const ibv_sge& sge, unsigned rights, Span& span,
                   const Shared& held) const {
  const Region* region = find_key(sge.lkey, held);
  if (region == nullptr)
    return ENOENT;
  // Some devices take offsets into such a region, others do not know that right.
  const bool offsets = (region->access & IBV_ACCESS_ZERO_BASED) != 0;
  const uint64_t address =
      offsets && sge.addr >= region->start ? sge.addr - region->start : sge.addr;
  if (const int rc = check(*region, pd, address, sge.length, rights); rc != 0)
    return rc;
  span.data = region->at(address);
  return 0;
}

bool Regions::place(const ibv_pd* pd, const ibv_sge& sge,
                    std::span<const std::byte> bytes) const noexcept {
  assert(bytes.size() <= sge.length);
  const Shared held(lock_);
  Span span;
  return local(pd, sge, IBV_ACCESS_LOCAL_WRITE, span, held) == 0 &&
         memory::write(span.data, bytes.data(), bytes.size());
}

Readable Regions::readable(const ibv_pd* pd, uint32_t key) const {
  const Shared held(lock_);
  const Region* region = find_virtual(key, held);
  if (region == nullptr || !same_pd(region->pd, pd) || !region->backend->copies_out())
    return {};
  return {key, changes_.load(), region->iova, region->length, region->at(region->iova)};
}

Readable Regions::stand(const ibv_pd* pd, uint32_t key, Window& window, Standing& standing,
                        uint32_t& lkey) noexcept {
  const Shared held(lock_);
  const Region* region = find_virtual(key, held);
  if (region == nullptr || !same_pd(region->pd, pd) || !windows_.stand(*region, window, standing))
    return {};
  // No region changes meanwhile, so the window is one of it and registered.
  lkey = window.mr->lkey;
  return {key, changes_.load(), window.start + window.shift, window.end - window.start, nullptr};
}

void Regions::bring_in(const ibv_pd* pd, std::span<const ibv_sge> elements) noexcept {
  for (const ibv_sge& sge : elements) {
    Span span;
    if (sge.length != 0 && may_be_virtual(sge.lkey) && local(pd, sge, 0, span) == 0 &&
        !has_window(sge.lkey, span.data, sge.length))
      memory::bring_in(span.data, sge.length);
  }
}

// To look at so few pages takes less than to ask.
bool Regions::has_window(uint32_t key, const std::byte* data, uint64_t length) noexcept {
  constexpr uint64_t few = 16 << 10;
  if (length < few)
    return false;
  const Shared held(lock_);
  Region* const region = find_virtual(key, held);
  const auto from = reinterpret_cast<uintptr_t>(data);
  return region != nullptr && windows_.has(*region, from, from + length);
}

int Regions::remote(const ibv_pd* pd, uint32_t key, uint64_t address, uint64_t length,
                    unsigned right, std::byte*& data) const {
  const Shared held(lock_);
  const Region* region = find_for_peer(key, held);
  if (region == nullptr)
    return ENOENT;
  if (const int rc = check(*region, pd, address, length, right); rc != 0)
    return rc;
  data = region->at(address);
  return 0;
}

bool Regions::awaits_copy(uint32_t key, uint64_t address, uint64_t length) const {
  const StagedReceives* const staged = world_.parts.staged_receives.made();
  if (staged == nullptr)
    return false;
  const Shared held(lock_);
  const Region* region = find_for_peer(key, held);
  return region != nullptr && inside(*region, address, length) &&
         staged->meet(reinterpret_cast<uintptr_t>(region->at(address)), length);
}

bool Regions::any_virtual(const ibv_pd* pd) const {
  const Shared held(lock_);
  return std::any_of(by_mr_.begin(), by_mr_.end(), [pd](const auto& entry) {
    return entry.second->key != nullptr && entry.second->pd == pd;
  });
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

bool Regions::exists(uint32_t key) const {
  const Shared held(lock_);
  return find_key(key, held) != nullptr;
}

bool Regions::exists(const ibv_pd* pd, uint32_t key) const {
  const Shared held(lock_);
  const Region* region = find_key(key, held);
  return region != nullptr && same_pd(region->pd, pd);
}

bool Regions::is_virtual_to_peer(const ibv_pd* pd, uint32_t key) {
  if (!is_reserved(key)) {
    told_real(key);
    return false;
  }
  const Shared held(lock_);
  const Region* region = find_for_peer(key, held);
  return region == nullptr || same_pd(region->pd, pd);
}

std::shared_ptr<Key> Regions::key_token(uint32_t key) const {
  const Shared held(lock_);
  const Region* region = find_for_peer(key, held);
  if (region == nullptr)
    return nullptr;
  return region->key != nullptr ? region->key : region->served;
}

int Regions::localize_virtual(const Use& use, ibv_sge& sge, Hold& hold) {
  const Shared held(lock_);
  Region* region = find_virtual(sge.lkey, held);
  if (region == nullptr)
    return 0; // nothing to translate: the device judges the key as it stands
  // By whichever context. What is lent nobody calls back: no message is staged meanwhile, wherever,
  // as one that meets both would have to be.
  const auto is_lent = [&](const ibv_sge& of) {
    const Recalls* const recalls = world_.parts.recalls.made();
    const auto from = reinterpret_cast<uintptr_t>(region->at(of.addr));
    return recalls != nullptr &&
           ((use.receive && recalls->lends()) || recalls->leased().any(from, of.length) ||
            recalls->viewed().any(from, of.length));
  };
  const auto overlaps = [&] {
    return overlaps_.any() &&
           (use.receive ? overlaps_.meet(*region) : overlaps_.meet(*region, sge.addr, sge.length));
  };
  const auto is_reached = [&] {
    return check(*region, use.pd, sge.addr, sge.length, use.rights) == 0 &&
           (overlaps() || is_lent(sge));
  };
  const auto in_place = [&] {
    const Use by_device{use.pd, use.staging, 0,          use.rights,
                        false,  use.receive, use.behind, use.queue};
    return region->backend->localize(*region, by_device, sge, hold);
  };
  try {
    if (!use.copy_in && use.behind != Behind::staged && is_reached()) [[unlikely]]
      return in_place();
    const ibv_sge posted = sge;
    const int rc = region->backend->localize(*region, use, sge, hold);
    if (!hold.staged_receive() || use.behind == Behind::staged || !is_lent(posted)) [[likely]]
      return rc;
    // It has been lent since.
    release(use.staging, hold);
    sge = posted;
    return in_place();
  } catch (const std::bad_alloc&) { // whoever asks gives back what it holds already
    release(use.staging, hold);
    return ENOMEM;
  }
}

void Regions::release(Staging& staging, Hold& hold) noexcept {
  if (hold.block)
    staging.give(hold.block);
  if (hold.backend != nullptr)
    hold.backend->release(hold);
  hold = {};
}

bool Regions::deliver(const ibv_pd* pd, const Hold& hold, size_t bytes) const noexcept {
  assert(hold.life != nullptr);
  const Shared held(lock_);
  Region* const region = hold.life->region;
  if (hold.life->number != hold.number || region == nullptr ||
      check(*region, pd, hold.address, bytes, IBV_ACCESS_LOCAL_WRITE) != 0)
    return false;
  if (hold.staged_receive() && overlaps_.any() && overlaps_.meet(*region, hold.address, bytes) &&
      world_.log.every("receive-overlaps", 10)) [[unlikely]]
    world_.log.warn("a received message of {} bytes is copied to memory that another, pinned "
                    "region shares since the receive was posted; bytes that a peer's device wrote "
                    "there meanwhile are lost; register memory before you post receives",
                    bytes);
  return region->backend->deliver(*region, hold, bytes);
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

std::span<std::byte> Regions::lease_bounds(uint32_t key, uint64_t address, uint64_t length) const {
  const Shared held(lock_);
  const Region* region = find_virtual(key, held);
  if (region == nullptr || !inside(*region, address, length) || !region->backend->traits().leases)
    return {};
  const auto [from, to] = registration::lease_bounds(*region, address, length);
  return {reinterpret_cast<std::byte*>(from), to - from};
}

int Regions::lease(uint32_t key, uint64_t address, uint64_t length, std::shared_ptr<Grant>& grant) {
  const Shared held(lock_);
  Region* region = find_virtual(key, held);
  if (region == nullptr)
    return ENOENT;
  if (!inside(*region, address, length))
    return ERANGE;
  if (!region->backend->traits().leases)
    return EOPNOTSUPP;
  if (const int rc = region->backend->lease(*region, address, length, grant); rc != 0)
    return rc;
  // A message that stands in staging would come to its place only when the program polls, after
  // whatever the peer's device does there later. Who stages one looks at the leases afterwards.
  const StagedReceives* const staged = world_.parts.staged_receives.made();
  if (staged == nullptr || !staged->meet(grant->from, grant->bytes))
    return 0;
  grants_->take_back(std::exchange(grant, nullptr));
  return EAGAIN;
}

int Regions::view(uint32_t key, uint64_t address, uint64_t length, std::shared_ptr<Grant>& grant) {
  const Shared held(lock_);
  Region* region = find_virtual(key, held);
  if (region == nullptr)
    return ENOENT;
  if (!inside(*region, address, length))
    return ERANGE;
  if (region->backend->traits().views == policy::Views::no)
    return EOPNOTSUPP;
  return region->backend->view(*region, address, length, grant);
}

bool Regions::has_views(uint32_t key) const {
  const Shared held(lock_);
  const Region* const region = find_virtual(key, held);
  return region != nullptr && region->backend->traits().views != policy::Views::no;
}

void Regions::served(uint32_t key, uint64_t address, uint64_t length) noexcept {
  const Shared held(lock_);
  const Region* const region = find_virtual(key, held);
  if (region != nullptr && inside(*region, address, length))
    region->backend->served(*region, address, length);
}

void Regions::ends(const ibv_pd* pd) noexcept {
  views_->ends(pd);
}

void Regions::in_child() {
  renew(lock_);
  windows_.in_child();
  grants_->in_child();
  views_->in_child();
  keys_.in_child();
}

void Regions::close() {
  const Unique held(lock_);
  for (const auto& [mr, listed] : by_mr_)
    for (Region* region = listed.get(); region != nullptr; region = region->former.get()) {
      grants_->drop(*region);
      views_->drop(*region);
    }
  by_key_.clear();
  by_served_.clear();
  by_mr_.clear();
  virtual_keys_ = 0; // and no post asks filter_ any more
  keys_.close();
}

} // namespace adverb::registration

namespace adverb {

registration::StagedReceives& World::staged_receives() {
  return parts.staged_receives.get([] { return std::make_shared<registration::StagedReceives>(); });
}

} // namespace adverb
