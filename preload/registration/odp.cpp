// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Backend "odp": the provider's own MR with IBV_ACCESS_ON_DEMAND added, where the device has that
// for all the region may be used for (odp_caps.h). Its keys are real, nothing is pinned, and memory
// follows addresses as the device's own mmu notifier hears of them.
#include "registration/odp_caps.h"
#include "registration/pinned.h"
#include "world/world.h"

#include <string>

namespace adverb::registration {

using observe::Counter;

namespace {

// Types of queue pairs whose ability is another than RC's.
enum Met : unsigned { uc = 1, ud = 2, another = 4 };

constexpr struct {
  Met met;
  ibv_qp_type type;
  std::string_view why;
} types[] = {
    {uc, IBV_QPT_UC,
     "the program has a UC queue pair, for which the device has no on-demand paging"},
    {ud, IBV_QPT_UD,
     "the program has a UD queue pair, for which the device has no on-demand paging"},
    {another, IBV_QPT_RAW_PACKET, "the program has a queue pair of another type than RC, UC, UD"},
};

constexpr Met met_of(ibv_qp_type type) noexcept {
  return type == IBV_QPT_UC ? uc : type == IBV_QPT_UD ? ud : another;
}

class Odp final : public Pinned {
public:
  using Pinned::Pinned;
  ~Odp() override { delete device_.load(); }

  Refusal fits(const Wanted& wanted) const override {
    if (const std::string_view why = lacks(wanted); !why.empty()) {
      const std::string_view device = wanted.pd->context->device->name;
      if (world_.log.once(std::string(device) + std::string(why)))
        world_.log.warn("{}: regions that are to be registered \"{}\" are pinned: {}", device,
                        traits().name, why);
      return {EOPNOTSUPP, why};
    }
    // Stock fails at once where memory is not mapped; the device would only when it gets there.
    return follows_addresses(wanted);
  }

  Refusal add(const Wanted& wanted, std::unique_ptr<Region>& made) override {
    if (const Refusal refusal =
            Pinned::add(wanted, IBV_ACCESS_ON_DEMAND, Counter::regions_on_demand, made))
      return {refusal.error, "on-demand paging was refused"};
    ++live_;
    return {};
  }

  int end(Region& region) override {
    const int rc = Pinned::end(region);
    if (rc == 0)
      --live_;
    return rc;
  }

  // The device is told anew whether the region is to be on demand. What adverb does not understand
  // it judges by itself.
  int change(Region& region, const Change& c, std::unique_lock<SharedMutex>& regions) override {
    Change asked = c;
    if (is_plain(c) && (c.moves() || c.other_rights())) {
      const Wanted now = changed(region, c);
      asked.what |= IBV_REREG_MR_CHANGE_ACCESS;
      asked.access = now.access | (fits(now) ? 0U : unsigned{IBV_ACCESS_ON_DEMAND});
    }
    return Pinned::change(region, c, asked, regions);
  }

  // Regions that stand may never be used by it: so it may be made.
  void meet(ibv_context* context, ibv_qp_type type) override {
    if (type == IBV_QPT_RC || (met_.fetch_or(met_of(type)) & met_of(type)) != 0)
      return;
    const size_t live = live_;
    if (live == 0)
      return;
    if (const std::string_view why = unserved(device(context)); !why.empty())
      world_.log.warn("{}: {}; regions that are registered from now on are pinned; requests to "
                      "that queue pair must not name the {} regions that exist already",
                      context->device->name, why, live);
  }

private:
  std::string_view lacks(const Wanted& wanted) const {
    const ibv_device_attr_ex& device = this->device(wanted.pd->context);
    if (const std::string_view why = odp_lacks(device, wanted.access); !why.empty())
      return why;
    if ((wanted.access & IBV_ACCESS_HUGETLB) != 0)
      return "with the right HUGETLB the device would page huge pages only";
    // soft-RoCE takes what requests name for addresses of the process.
    if (wanted.iova != reinterpret_cast<uintptr_t>(wanted.start))
      return "work requests name its bytes by other addresses than the program's";
    return unserved(device);
  }

  std::string_view unserved(const ibv_device_attr_ex& device) const noexcept {
    const unsigned met = met_;
    for (const auto& one : types)
      if ((met & one.met) != 0 && !odp_serves(device.odp_caps, one.type))
        return one.why;
    return {};
  }

  // No paging where the device cannot be asked. Asked once.
  const ibv_device_attr_ex& device(ibv_context* context) const {
    if (const auto* const known = device_.load())
      return *known;
    auto mine = std::make_unique<ibv_device_attr_ex>();
    const auto query = world_.provider.ops(context).query_device_ex;
    const provider::Inside inside;
    if (query == nullptr || query(context, nullptr, mine.get(), sizeof *mine) != 0)
      *mine = {};
    const ibv_device_attr_ex* first = nullptr;
    return device_.compare_exchange_strong(first, mine.get()) ? *mine.release() : *first;
  }

  mutable Atomic<const ibv_device_attr_ex*> device_{nullptr};
  Atomic<unsigned> met_{0};
  Atomic<size_t> live_{0};
};

} // namespace

std::unique_ptr<Backend> make_odp(const policy::BackendTraits& traits, const Means& means) {
  return std::make_unique<Odp>(traits, means.world);
}

} // namespace adverb::registration
