// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Views of a program's memory, as adverb.ko and an IOMMU would have them: a device reads by them
// what is there, and the pattern where a page is away. Pages leave and come when the schedule says
// so, in the middle of a READ, too: PCIe cuts it at any word of four bytes of the address, and the
// device at its packets, which begin where the READ begins.
#pragma once

#include "choices.h"
#include "device.h"

#include "registration/view_source.h"

#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace sim {

class Views final : public adverb::registration::ViewSource {
public:
  Views(Choices& choices, Fabric& fabric) : choices_(choices), fabric_(fabric) {}

  int begin(adverb::registration::Image& image, std::string& why) override;
  int build(const adverb::registration::Image& image, uintptr_t address,
            adverb::registration::View& view, std::string& why) override;
  void give_back(const adverb::registration::Image& image,
                 const adverb::registration::View& view) noexcept override;
  void show(const adverb::registration::Image& image,
            std::span<const adverb::registration::Shown> what) noexcept override;
  void end(const adverb::registration::Image& image) noexcept override;

  bool any() const { return !images_.empty(); }
  // A page is not shown any more, or again.
  void one_goes();
  // What a program has taken away none shows.
  void taken_away(const void* from, size_t bytes);
  uint64_t left() const { return static_cast<uint64_t>(images_.size()) + views_; }

private:
  struct Shown {
    adverb::registration::Image image;
    std::set<uintptr_t> pages; // that are shown
  };
  void read(const Shown& shown, uintptr_t from, size_t done, std::byte* to, size_t bytes) const;

  Choices& choices_;
  Fabric& fabric_;
  uint32_t next_ = 1;
  uint64_t views_ = 0;
  std::map<uint32_t, Shown> images_;
};

} // namespace sim
