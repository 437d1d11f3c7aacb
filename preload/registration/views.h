// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What peers may read of regions by views (view_source.h): with nothing pinned, and without this
// process's CPU.
//
// The first peer that asks for a part of a region has its view built, by a job of the service's,
// as the IOMMU may take its time; it is told to ask again. A view that peers have is kept; one that
// no peer has had for a while is given back.
//
// Views need not be called back when memory changes: they show what the addresses hold, or the
// pattern. All of a region's end with it, at once. Where a region changes they show the pattern
// from then on, and peers that read by them find out and ask the CPU; they are called back, and
// nobody waits for that. Each is given back when no peer has it, and in any case with its region or
// its protection domain.
//
// One per program context. Thread-safe; its lock is taken inside that of Regions.
#pragma once

#include "registration/region.h"
#include "registration/view_source.h"
#include "service/service.h"

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace adverb {
class World;
}

namespace adverb::registration {

/// The views of one region.
struct ImageOfRegion;

class Views final : public Lender, public std::enable_shared_from_this<Views> {
public:
  /// A view that no peer has is kept for so long: it is asked for again in one message, and made
  /// again in many.
  static constexpr std::chrono::seconds idle{30};
  /// So long nothing is tried again where it failed.
  static constexpr std::chrono::seconds pause{10};

  explicit Views(World& world);
  ~Views() override;

  /// The view that holds [address, +length), which lies in the region. errno; EAGAIN: not now,
  /// EOPNOTSUPP: not of this region for a while, or ever, ERANGE: never of these bytes, which lie
  /// in two.
  [[nodiscard]] int lend(Region& region, uint64_t address, uint64_t length,
                         std::shared_ptr<Grant>& grant);
  bool is_good(const Grant& grant) noexcept override;
  bool is_over(const Grant& grant) noexcept override;
  void take_back(const std::shared_ptr<Grant>& grant) noexcept override;

  /// The CPU has looked at those bytes for a peer, so their pages are there: views are to show
  /// them.
  void show(const Region& region, uint64_t address, uint64_t length) noexcept;

  /// The region ends. Waits for what is being built of it.
  void drop(Region& region) noexcept;
  /// It changes. The same.
  void changed(Region& region) noexcept;
  /// The protection domain is about to end, with what peers still have of regions that have left
  /// it.
  void ends(const ibv_pd* pd) noexcept;

  /// In a fork child: views are the parent's.
  void in_child() noexcept;

private:
  class Maker;
  struct Task {
    std::shared_ptr<ImageOfRegion> image;
    uintptr_t address = 0;
    Shown shown; // if it is not to be built
  };
  using Held = std::unique_lock<Mutex>;

  void post(const Held& held);
  void work();
  void build(ImageOfRegion& image, uintptr_t address);
  void count(const View& view, int64_t sign) noexcept;
  void failed(ImageOfRegion& image, int error, const std::string& why);
  void sweep();
  void sweep_later(const Held& held);
  std::shared_ptr<ImageOfRegion> leave(Region& region, bool for_good) noexcept;
  void give_back_all(ImageOfRegion& image) noexcept;

  World& world_;
  Mutex lock_;
  const std::unique_ptr<Maker> maker_;
  std::shared_ptr<Views> working_; // itself, while the maker is posted
  std::vector<Task> tasks_;
  std::vector<std::weak_ptr<ImageOfRegion>> images_;
  bool sweeping_ = false;
  bool refused_ = false; // by the device, for good
  bool told_ = false;    // the page says why there are none
  std::chrono::nanoseconds again_at_{};
  bool child_ = false;
};

} // namespace adverb::registration
