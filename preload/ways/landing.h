// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a READ by a view brought: which pages of it may not have been there.
//
// Where a page is away, a view shows the region's pattern (kernel/README.md). What a device brings
// is whole only in aligned words of 4 bytes of the *remote* address: PCIe may cut a read at any of
// them, and a response that is sent again reads a suffix anew. A READ that does not begin at a word
// is also cut within words: each packet of its response begins where the one before it ends, and
// is read from memory by itself, and so may be each request of the device to PCIe. Packets are
// multiples of 128 bytes long, of 256 to 4096, and so are the longest requests that a device may
// make (Max_Read_Request_Size; PCI Express Base Specification, Device Control Register). That a
// device makes no shorter ones that end within a word is assumed; none is known that does.
//
// So a page is suspect if any such word, or the part of a word on one side of such a cut or of an
// end of the READ, is equal to the pattern's at its place. Data that equals it by chance costs one
// more transfer. Nobody can write to the page that the pattern stands in.
#pragma once

#include "registration/view_source.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

namespace adverb::ways {

using registration::Pattern;
inline constexpr size_t page_bytes = registration::pattern_bytes;

// Of one READ: what it brought is shown in its order, element by element.
class Landing {
public:
  // `remote`: the address of its first byte, as the region's owner has it.
  Landing(const Pattern& pattern, uint64_t remote)
      : pattern_(pattern), at_(remote), cuts_(remote % word != 0), cut_(remote % cut_bytes) {}

  // `suspect(page)` is called for each page that is, once, by the remote address it begins at.
  template <typename Suspect> void came(std::span<const std::byte> bytes, Suspect&& suspect) {
    while (!bytes.empty()) {
      const size_t in_page = at_ % page_bytes;
      const size_t take = std::min({bytes.size(), page_bytes - in_page, to_the_cut()});
      look(bytes.first(take), in_page);
      at_ += take;
      bytes = bytes.subspan(take);
      if (cuts_ && at_ % cut_bytes == cut_)
        end_of_word();
      if (at_ % page_bytes == 0)
        end_of_page(suspect);
    }
  }
  template <typename Suspect> void end(Suspect&& suspect) {
    end_of_word();
    if (at_ % page_bytes != 0)
      end_of_page(suspect);
  }

private:
  static constexpr size_t word = 4;
  static constexpr size_t cut_bytes = 128; // a page is a multiple of it
  size_t to_the_cut() const noexcept {
    return cuts_ ? cut_bytes - (at_ - cut_) % cut_bytes : page_bytes;
  }
  void look(std::span<const std::byte> bytes, size_t in_page) noexcept;
  void end_of_word() noexcept {
    found_ |= touched_ != 0 && equal_;
    touched_ = 0;
    equal_ = true;
  }
  template <typename Suspect> void end_of_page(Suspect& suspect) {
    if (std::exchange(found_, false))
      suspect((at_ - 1) & ~uint64_t{page_bytes - 1});
  }

  const Pattern& pattern_;
  uint64_t at_;
  const bool cuts_;     // within words
  const uint64_t cut_;  // at addresses that leave this remainder
  bool found_ = false;  // of this page
  uint8_t touched_ = 0; // bytes of a word that came in pieces
  bool equal_ = true;   // those are the pattern's
};

} // namespace adverb::ways
