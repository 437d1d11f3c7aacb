// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "tools/stat_module.h"
#include "tools/commands.h"
#include "tools/text.h"

#include <algorithm>
#include <cstdio>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace adverb::tools {
namespace {

using nlohmann::ordered_json;

ordered_json counts_json(const module::Counts& counts) {
  ordered_json out = ordered_json::object();
  for (size_t i = 0; i < counts.size(); ++i)
    out[module::kCounters[i].name] = counts[i];
  return out;
}

std::string counts_text(const module::Counts& counts, bool all) {
  std::string out;
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] != 0 || all)
      out += fmt::format("{} {} {}", out.empty() ? ";" : ",", module::kCounters[i].name, counts[i]);
  return out;
}

void print_event(const module::Event& event, bool json) {
  if (json) {
    const ordered_json out = {
        {"pid", event.pid}, {"region", event.region}, {"reason", event.reason}};
    puts(out.dump(-1, ' ', false, ordered_json::error_handler_t::replace).c_str());
  } else {
    fmt::print("{} region {}: {}\n", event.pid, event.region, printable(event.reason));
  }
}

} // namespace

module::Result<ModuleStat> ask_module(pid_t pid) {
  auto opened = module::Client::open();
  if (auto* failed = std::get_if<module::Failure>(&opened))
    return *failed;
  auto& client = std::get<module::Client>(opened);
  auto counts = client.statistics();
  auto limits = client.limits();
  auto regions = client.regions();
  if (auto* failed = std::get_if<module::Failure>(&counts))
    return *failed;
  if (auto* failed = std::get_if<module::Failure>(&limits))
    return *failed;
  if (auto* failed = std::get_if<module::Failure>(&regions))
    return *failed;
  ModuleStat out{std::get<module::Counts>(counts), std::get<module::Limits>(limits),
                 std::move(std::get<std::vector<module::Region>>(regions))};
  if (pid != 0)
    std::erase_if(out.regions, [&](const module::Region& region) {
      return region.pid != static_cast<uint32_t>(pid);
    });
  std::ranges::sort(out.regions, {}, [](const module::Region& region) {
    return std::tuple(region.pid, region.number);
  });
  return out;
}

void print_module(const ModuleStat& module, bool all) {
  fmt::print("adverb.ko, {}\n", amount(static_cast<int64_t>(module.regions.size()), "regions"));
  if (all)
    fmt::print("  a user has at most {} regions and {} table pages\n", module.limits.regions,
               module.limits.pages);
  for (size_t i = 0; i < module.counts.size(); ++i) {
    const module::Counter& counter = module::kCounters[i];
    if (module.counts[i] != 0 || all)
      fmt::print("    {:<24} {:>18}  {}\n", counter.name,
                 amount(static_cast<int64_t>(module.counts[i]), counter.unit), counter.help);
  }
  for (const module::Region& region : module.regions)
    fmt::print("  {} region {}: {:#x}, {}, {} extents, {} devices, {} table pages{}{}\n",
               region.pid, region.number, region.start,
               amount(static_cast<int64_t>(region.length), "bytes"), region.extents,
               region.attachments, region.charged_pages,
               region.destroyed ? ", destroyed but held" : "", counts_text(region.counts, all));
}

ordered_json to_json(const ModuleStat& module) {
  ordered_json out;
  out["counters"] = counts_json(module.counts);
  out["limits"] = {{"regions", module.limits.regions}, {"pages", module.limits.pages}};
  out["regions"] = ordered_json::array();
  for (const module::Region& region : module.regions)
    out["regions"].push_back({{"pid", region.pid},
                              {"uid", region.uid},
                              {"region", region.number},
                              {"start", region.start},
                              {"length", region.length},
                              {"extents", region.extents},
                              {"attachments", region.attachments},
                              {"charged_pages", region.charged_pages},
                              {"destroyed", region.destroyed},
                              {"counters", counts_json(region.counts)}});
  return out;
}

int follow_events(bool json) {
  auto opened = module::Client::open();
  if (auto* failed = std::get_if<module::Failure>(&opened)) {
    fprintf(stderr, "adverb stat: %s\n", failed->said().c_str());
    return status_failed;
  }
  auto& client = std::get<module::Client>(opened);
  if (const auto failed = client.listen()) {
    fprintf(stderr, "adverb stat: %s\n", failed->said().c_str());
    return status_failed;
  }
  for (;;) {
    const auto event = client.next_event();
    if (const auto* failed = std::get_if<module::Failure>(&event)) {
      fprintf(stderr, "adverb stat: %s\n", failed->said().c_str());
      return status_failed;
    }
    print_event(std::get<module::Event>(event), json);
    if (fflush(stdout) != 0)
      return status_failed;
  }
}

} // namespace adverb::tools
