// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "tools/plan_policy.h"
#include "link/packet_room.h"
#include "link/path_judge.h"
#include "policy/format.h"
#include "reliability/rate.h"
#include "tools/quantity.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace adverb::tools {
namespace {

constexpr uint64_t staging_least = uint64_t{64} << 20; // of profile far

// Half of "staging" is the budget of a device (Device::budget()).
uint64_t under_way(uint64_t staging, uint64_t mtu) {
  return link::packet_room::under_way(staging / 2, mtu);
}

} // namespace

uint64_t staging_of(uint64_t bytes_in_round_trip, double loss, uint64_t mtu) {
  constexpr double often = 0.01;
  const uint64_t packets = link::packet_room::message_bytes / mtu;
  const bool many_again = 1 - std::pow(1 - loss, packets) > often;
  const uint64_t needed = many_again ? 2 * bytes_in_round_trip : bytes_in_round_trip;
  uint64_t staging = staging_least;
  while (under_way(staging, mtu) < needed && under_way(2 * staging, mtu) > under_way(staging, mtu))
    staging *= 2;
  return staging;
}

std::string policy_of(const reliability::Transfer& link) {
  const double in_round_trip = link.bytes_per_second * link.rtt_ns / 1e9;
  const uint64_t staging =
      staging_of(static_cast<uint64_t>(in_round_trip), link.packet_loss, link.packet_bytes);
  const double most =
      static_cast<double>(under_way(staging, link.packet_bytes)) / link.rtt_ns * 1e9;
  link::PathJudge judge;
  judge.judge(std::chrono::nanoseconds(static_cast<int64_t>(link.rtt_ns)), link.packet_loss);
  std::string text =
      fmt::format("A link of {} with a round trip of {} that loses {} of its packets",
                  bandwidth_text(link.bytes_per_second), short_time_text(link.rtt_ns),
                  chance_text(link.packet_loss));
  if (most < link.bytes_per_second)
    text += fmt::format("; adverb carries {} at most", bandwidth_text(most));
  if (link.packet_loss > reliability::loss_allowed)
    text += "; losses above 2 % are taken for queues that overflow, so the rate will be far less";
  const nlohmann::ordered_json policy = {
      {"version", 1},
      {"description", text},
      {"staging", policy::size_text(staging)},
      {"rules",
       {{{"name", "far"}, {"reliability", judge.pays() ? "software" : "auto"}},
        {{"name", "peers"}, {"peers", "auto"}}}}};
  return policy.dump(2);
}

} // namespace adverb::tools
