// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The grammar of ADVERB_LOOPBACK_LINK.
#include "link.h"
#include "setting.h"

namespace adverb::loopback {

namespace {

Reason read_probability(std::string_view text, double& value) {
  std::string_view rest;
  if (!take_number(text, value, rest) || !rest.empty() || value > 1)
    return "a probability is a number from 0 to 1";
  return {};
}

Reason read_burst(std::string_view text, double& value) {
  std::string_view rest;
  if (!take_number(text, value, rest) || !rest.empty() || value < 1)
    return "a mean burst length is a number of packets, 1 or more";
  return {};
}

// P:N or P:N:TIME
Reason read_reorder(std::string_view text, LinkSetting& setting) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos)
    return "reorder is P:N, a probability and a number of packets";
  if (const Reason reason = read_probability(text.substr(0, colon), setting.reorder);
      !reason.empty())
    return reason;
  const std::string_view rest = text.substr(colon + 1);
  const size_t second = rest.find(':');
  if (const Reason reason = read_count(rest.substr(0, second), setting.reorder_span);
      !reason.empty())
    return reason;
  if (setting.reorder_span == 0)
    return "at least one packet has to overtake";
  return second == std::string_view::npos
             ? Reason()
             : read_time(rest.substr(second + 1), setting.reorder_wait_ns);
}

Reason read_late(std::string_view text, LinkSetting& setting) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos)
    return "late is P:TIME, a probability and a time";
  const Reason reason = read_probability(text.substr(0, colon), setting.late);
  return reason.empty() ? read_time(text.substr(colon + 1), setting.late_ns) : reason;
}

Reason read_unbacked(std::string_view text, bool& place) {
  place = text == "place";
  return place || text == "drop" ? Reason() : "unbacked is drop or place";
}

Reason read_word(std::string_view name, std::string_view value, LinkSetting& setting) {
  if (name == "seed")
    return read_count(value, setting.seed);
  if (name == "loss")
    return read_probability(value, setting.loss);
  if (name == "burst")
    return read_burst(value, setting.burst);
  if (name == "duplicate")
    return read_probability(value, setting.duplicate);
  if (name == "reorder")
    return read_reorder(value, setting);
  if (name == "late")
    return read_late(value, setting);
  if (name == "delay")
    return read_time(value, setting.delay_ns);
  if (name == "unbacked")
    return read_unbacked(value, setting.place_unbacked);
  return "the names are seed, loss, burst, duplicate, reorder, late, delay and unbacked";
}

} // namespace

bool parse_link(std::string_view text, LinkSetting& setting, std::string& complaint) {
  const auto read = [&](std::string_view name, std::string_view value) {
    return read_word(name, value, setting);
  };
  if (!read_words(text, complaint, read))
    return false;
  if (setting.burst != 0 && setting.loss / setting.burst > 1 - setting.loss) {
    complaint = "'burst': bursts this short cannot lose so many packets";
    return false;
  }
  return true;
}

} // namespace adverb::loopback
