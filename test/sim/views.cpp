// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "views.h"
#include "pages.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

namespace sim {

using adverb::registration::Image;
using adverb::registration::View;

namespace {
constexpr uintptr_t page = adverb::registration::pattern_bytes;
constexpr size_t word = 4;     // bytes
constexpr size_t packet = 128; // bytes that a device reads at a time, or a part of them
constexpr uintptr_t page_of(uintptr_t at) {
  return at & ~(page - 1);
}
} // namespace

// Of values that no program of a schedule has, as of a module's no program has: these count up from
// 10^12.
int Views::begin(Image& image, std::string& why) {
  if (choices_.once_in(24)) {
    why = "it happens";
    return choices_.once_in(2) ? EOPNOTSUPP : ENOMEM;
  }
  image.number = next_++;
  for (size_t at = 0; at < image.pattern.size(); at += sizeof(uint32_t)) {
    const uint32_t word =
        0xD0000000U ^ (image.number << 16) ^ static_cast<uint32_t>(at * 2654435761U >> 8);
    memcpy(image.pattern.data() + at, &word, sizeof word);
  }
  images_[image.number].image = image;
  return 0;
}

// All of a region, or its pages one by one.
int Views::build(const Image& image, uintptr_t address, View& view, std::string& why) {
  if (choices_.once_in(24)) {
    why = "it happens";
    return ENOMEM;
  }
  Shown& shown = images_.at(image.number);
  const bool small = (image.number & 1) != 0;
  const uintptr_t end = image.start + image.length;
  view.from = small ? std::max<uintptr_t>(image.start, page_of(address)) : image.start;
  view.to = small ? std::min<uintptr_t>(end, page_of(address) + page) : end;
  for (uintptr_t at = page_of(view.from); at < view.to; at += page)
    if (Pages::all_there(at, page))
      shown.pages.insert(at);
  view.rkey = fabric_.add_view(
      image.pd, reinterpret_cast<void*>(view.from), view.to - view.from, view.from + image.shift,
      [this, number = image.number](uintptr_t from, std::byte* to, size_t bytes, bool again) {
        // A response that was lost is sent again from some word on.
        const size_t kept = !again ? 0
                            : choices_.once_in(4)
                                ? choices_.below(static_cast<uint32_t>(bytes / word + 1)) * word +
                                      (word - from % word) % word
                                : bytes;
        if (kept < bytes)
          read(images_.at(number), from, kept, to, bytes);
      });
  ++views_;
  return 0;
}

void Views::give_back(const Image& /*image*/, const View& view) noexcept {
  --views_;
  fabric_.remove_view(view.rkey);
}

void Views::show(const Image& image, std::span<const adverb::registration::Shown> what) noexcept {
  Shown& shown = images_.at(image.number);
  for (const auto& part : what)
    for (uintptr_t at = page_of(part.from); at < part.to; at += page)
      if (Pages::all_there(at, page))
        shown.pages.insert(at);
}

// What is left of its views shows the pattern; who reads by one meanwhile has it.
void Views::end(const Image& image) noexcept {
  Shown& shown = images_.at(image.number);
  shown.pages.clear();
}

void Views::one_goes() {
  auto at = images_.begin();
  std::advance(at, choices_.below(static_cast<uint32_t>(images_.size())));
  auto& pages = at->second.pages;
  if (pages.empty())
    return;
  auto one = pages.begin();
  std::advance(one, choices_.below(static_cast<uint32_t>(pages.size())));
  pages.erase(one);
}

void Views::taken_away(const void* from, size_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(from);
  for (auto& [number, shown] : images_)
    for (uintptr_t at = page_of(first); at < first + bytes; at += page)
      shown.pages.erase(at);
}

// Each page by what it is when it is read; one of them may come or go meanwhile. A READ of `bytes`
// from `from` on, of which the first `done` have come before.
void Views::read(const Shown& shown, uintptr_t from, size_t done, std::byte* to,
                 size_t bytes) const {
  while (done < bytes) {
    const uintptr_t at = from + done;
    const size_t n = std::min<size_t>(bytes - done, page - at % page);
    const bool is_shown = shown.pages.contains(page_of(at));
    const auto copy = [&](size_t begin, size_t end, bool there) {
      const std::byte* const real = Pages::kept(reinterpret_cast<void*>(at));
      const std::byte* const pattern = shown.image.pattern.data() + at % page;
      std::copy_n((there ? real : pattern) + begin, end - begin, to + done + begin);
    };
    bool first = is_shown;
    bool second = is_shown;
    size_t cut = n;
    if (choices_.once_in(6)) { // at a word of the address, or where a packet of the READ begins
      const uintptr_t unit = from % word != 0 && choices_.once_in(2) ? packet : word;
      const uintptr_t first_cut =
          unit == packet ? (packet - done % packet) % packet : (word - at % word) % word;
      cut = std::min<size_t>(n, choices_.below(static_cast<uint32_t>(n / unit + 1)) * unit +
                                    first_cut);
      first = is_shown && choices_.once_in(2);
      second = is_shown && !first;
    }
    copy(0, cut, first);
    copy(cut, n, second);
    done += n;
  }
}

} // namespace sim
