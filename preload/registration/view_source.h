// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Where views come from: adverb.ko, and the verb that registers one of its dma-bufs. A view is an
// image of memory that nobody has pinned, which a device may read at any time: where a page is
// away it shows the pattern of its image instead (kernel/README.md).
//
// The product's is in module_views.cpp, a simulation has its own. Any thread; a call may take as
// long as the IOMMU needs for an extent, so no lock that a post needs is held.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <infiniband/verbs.h>

namespace adverb::registration {

/// What an absent page reads as.
inline constexpr size_t pattern_bytes = 4096;
using Pattern = std::array<std::byte, pattern_bytes>;

/// The image of one region.
struct Image {
  uintptr_t start = 0; // addresses of the process
  uint64_t length = 0; // bytes
  uint64_t shift = 0;  // of the addresses that work requests use; a multiple of the page
  ibv_pd* pd = nullptr;
  uint32_t number = 0; // the source's
  Pattern pattern{};
};

/// What of an image a device reaches under one key: an extent of the module's, as much of it as is
/// the region's.
struct View {
  uintptr_t from = 0; // addresses of the process
  uintptr_t to = 0;
  uint32_t rkey = 0;
  // The source's:
  uint32_t handle = 0;
  int fd = -1;
};

struct Shown {
  uintptr_t from = 0;
  uintptr_t to = 0;
};

class ViewSource {
public:
  ViewSource() = default;
  virtual ~ViewSource() = default;
  ViewSource(const ViewSource&) = delete;
  ViewSource& operator=(const ViewSource&) = delete;

  /// All return errno, 0 for good, and `why` in words where there is more to say.

  /// Fills in number and pattern. ENODEV: there is no module, or none that fits.
  [[nodiscard]] virtual int begin(Image& image, std::string& why) = 0;
  /// The view that has `address`, with what is in memory of it shown, registered with the right
  /// REMOTE_READ alone. EOPNOTSUPP: that device cannot have one.
  [[nodiscard]] virtual int build(const Image& image, uintptr_t address, View& view,
                                  std::string& why) = 0;
  /// Nothing is reached by it any more. Also when the image has ended.
  virtual void give_back(const Image& image, const View& view) noexcept = 0;
  /// What is in memory there is shown; nothing is brought.
  virtual void show(const Image& image, std::span<const Shown> what) noexcept = 0;
  /// The image ends: its views show the pattern, until they are given back.
  virtual void end(const Image& image) noexcept = 0;
};

/// Whether that device can have a view through adverb.ko: makes one of a page, and takes it away.
/// 0, or errno and `why` in words. Any thread; blocks as long as the IOMMU takes.
[[nodiscard]] int try_view(ibv_pd* pd, std::string& why);

} // namespace adverb::registration
