// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "reliability/wire.h"

#include <cstring>

namespace adverb::reliability::wire {
namespace {

struct ReportHead {
  uint64_t highest = 0;
  uint64_t held_for = 0;
  uint64_t arrived = 0;
  uint64_t duplicates = 0;
  uint64_t starved = 0;
  uint64_t credit = 0;
  uint64_t granted = 0;
  uint32_t sections = 0;
  uint32_t zero = 0;
};
static_assert(sizeof(ReportHead) == 64);

struct SectionHead {
  uint64_t message = 0;
  uint32_t base = 0;
  uint32_t first = 0;
  uint16_t words = 0;
  uint8_t end = 0;
  uint8_t rest_missing = 0;
  uint32_t zero = 0;
};
static_assert(sizeof(SectionHead) == 24);

static_assert(payload_least >= sizeof(ReportHead) + sizeof(SectionHead) + sizeof(uint64_t));
constexpr size_t heads_kept = 4; // sections whose heads a report has room for beside its words
constexpr unsigned unit_shift = 1;
constexpr unsigned parity_shift = 2;
constexpr unsigned scheme_bits = 4;

template <typename T> bool take(std::span<const std::byte>& in, T& out) noexcept {
  if (in.size() < sizeof out)
    return false;
  memcpy(&out, in.data(), sizeof out);
  in = in.subspan(sizeof out);
  return true;
}

} // namespace

uint8_t scheme_byte(const Scheme& scheme) noexcept {
  return static_cast<uint8_t>(static_cast<unsigned>(scheme.detection) |
                              static_cast<unsigned>(scheme.unit) << unit_shift |
                              static_cast<unsigned>(scheme.parity) << parity_shift);
}

std::optional<Scheme> scheme_of(uint8_t byte, uint8_t k, uint8_t m) noexcept {
  if (byte >> scheme_bits != 0)
    return std::nullopt;
  const Scheme scheme{static_cast<Detection>(byte & 1U), static_cast<Unit>(byte >> unit_shift & 1U),
                      static_cast<Parity>(byte >> parity_shift), k, m};
  return scheme.valid() ? std::optional(scheme) : std::nullopt;
}

size_t feedback_words(size_t payload_bytes) noexcept {
  constexpr size_t heads = sizeof(ReportHead) + heads_kept * sizeof(SectionHead);
  return payload_bytes < heads + sizeof(uint64_t) ? 1 : (payload_bytes - heads) / sizeof(uint64_t);
}

size_t write(const Feedback& feedback, std::span<std::byte> out) noexcept {
  ReportHead head{feedback.highest,
                  feedback.held_for,
                  feedback.arrived,
                  feedback.duplicates,
                  feedback.starved,
                  feedback.credit,
                  feedback.granted,
                  0,
                  0};
  size_t at = sizeof head;
  for (const Section& section : feedback.sections) {
    const size_t words = section.packets.size() * sizeof(uint64_t);
    if (at + sizeof(SectionHead) + words > out.size())
      continue;
    const SectionHead s{section.message,
                        section.base,
                        section.first,
                        static_cast<uint16_t>(section.packets.size()),
                        static_cast<uint8_t>(section.end),
                        static_cast<uint8_t>(section.rest_missing ? 1 : 0),
                        0};
    memcpy(&out[at], &s, sizeof s);
    at += sizeof s;
    if (words != 0)
      memcpy(&out[at], section.packets.data(), words);
    at += words;
    ++head.sections;
  }
  memcpy(out.data(), &head, sizeof head);
  return at;
}

std::optional<Feedback> read(std::span<const std::byte> in) {
  ReportHead head;
  if (!take(in, head) || head.zero != 0 || head.sections > in.size() / sizeof(SectionHead))
    return std::nullopt;
  Feedback out{head.highest, head.held_for, head.arrived, head.duplicates,
               head.starved, head.credit,   head.granted, {}};
  for (uint32_t i = 0; i < head.sections; ++i) {
    SectionHead s;
    if (!take(in, s) || s.zero != 0 || s.rest_missing > 1 ||
        s.end > static_cast<uint8_t>(End::silent) || in.size() / sizeof(uint64_t) < s.words)
      return std::nullopt;
    Section section{s.message, static_cast<End>(s.end), s.rest_missing != 0, s.base, s.first, {}};
    section.packets.resize(s.words);
    if (s.words != 0)
      memcpy(section.packets.data(), in.data(), s.words * sizeof(uint64_t));
    in = in.subspan(s.words * sizeof(uint64_t));
    out.sections.push_back(std::move(section));
  }
  return in.empty() ? std::optional(std::move(out)) : std::nullopt;
}

} // namespace adverb::reliability::wire
