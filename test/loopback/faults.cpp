// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Fault injection, from ADVERB_LOOPBACK_FAULTS; README.md has the grammar.
#include "engine.h"

#include <cstdlib>
#include <string_view>

namespace adverb::loopback {

namespace {

struct Faults {
  double drop = 0, reorder_reads = 0, error = 0;
  uint64_t delay_min = 0, delay_max = 0;
  ibv_wc_status status = IBV_WC_REM_ACCESS_ERR;
  uint64_t miss_ns = 0;
  uint32_t cached_pages = 0;
  uint64_t seed = 1;
  bool any = false;
};

uint64_t parse_ns(std::string_view text) {
  char* end = nullptr;
  const std::string copy(text);
  const double value = strtod(copy.c_str(), &end);
  const std::string_view unit(end);
  double scale = 1;
  if (unit.starts_with("us"))
    scale = 1e3;
  else if (unit.starts_with("ms"))
    scale = 1e6;
  else if (unit == "s")
    scale = 1e9;
  return static_cast<uint64_t>(value * scale);
}

ibv_wc_status parse_status(std::string_view name) {
  if (name == "REM_OP")
    return IBV_WC_REM_OP_ERR;
  if (name == "REM_INV_REQ")
    return IBV_WC_REM_INV_REQ_ERR;
  if (name == "RETRY_EXC")
    return IBV_WC_RETRY_EXC_ERR;
  if (name == "RNR_RETRY_EXC")
    return IBV_WC_RNR_RETRY_EXC_ERR;
  if (name == "LOC_PROT")
    return IBV_WC_LOC_PROT_ERR;
  if (name == "GENERAL")
    return IBV_WC_GENERAL_ERR;
  return IBV_WC_REM_ACCESS_ERR;
}

double parse_number(std::string_view text) {
  return strtod(std::string(text).c_str(), nullptr);
}

void parse_one(Faults& faults, std::string_view key, std::string_view value) {
  const size_t colon = value.find(':');
  const std::string_view first = value.substr(0, colon);
  const std::string_view second =
      colon == std::string_view::npos ? std::string_view() : value.substr(colon + 1);
  if (key == "drop") {
    faults.drop = parse_number(value);
  } else if (key == "delay") {
    const size_t dots = value.find("..");
    faults.delay_min = parse_ns(value.substr(0, dots));
    faults.delay_max =
        dots == std::string_view::npos ? faults.delay_min : parse_ns(value.substr(dots + 2));
  } else if (key == "reorder_reads") {
    faults.reorder_reads = parse_number(value);
  } else if (key == "error") {
    faults.error = parse_number(first);
    faults.status = parse_status(second);
  } else if (key == "mtt_miss") {
    faults.miss_ns = parse_ns(first);
    faults.cached_pages = second.empty() ? 4096 : static_cast<uint32_t>(parse_number(second));
  } else if (key == "seed") {
    faults.seed = static_cast<uint64_t>(parse_number(value));
  } else {
    fprintf(stderr, "adverb-loopback: unknown fault '%.*s'\n", static_cast<int>(key.size()),
            key.data());
  }
}

Faults parse() {
  Faults faults;
  const char* text = getenv("ADVERB_LOOPBACK_FAULTS");
  std::string_view rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos)
      continue;
    parse_one(faults, item.substr(0, equals), item.substr(equals + 1));
    faults.any = true;
  }
  return faults;
}

const Faults& faults() {
  static const Faults parsed = parse();
  return parsed;
}

// splitmix64 over a shared counter: one sequence per seed and process.
uint64_t draw() {
  static std::atomic<uint64_t> counter{faults().seed * 0x9e3779b97f4a7c15u};
  uint64_t x = counter.fetch_add(0x9e3779b97f4a7c15u);
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

bool chance(double probability) {
  return probability > 0 && static_cast<double>(draw() >> 11) * 0x1p-53 < probability;
}

} // namespace

Fault draw_fault(uint64_t retransmit_ns) {
  Fault fault;
  const Faults& set = faults();
  if (!set.any)
    return fault;
  if (chance(set.error)) {
    fault.status = set.status;
    return fault;
  }
  if (set.delay_max != 0)
    fault.delay = set.delay_min + draw() % (set.delay_max - set.delay_min + 1);
  // A lost packet shows as the time until it is sent again; later packets make the responder
  // ask for it sooner than the timer would.
  if (chance(set.drop))
    fault.delay += std::min<uint64_t>(retransmit_ns, 1000000u);
  return fault;
}

bool draw_reorder() {
  return faults().any && chance(faults().reorder_reads);
}

void charge_translation(uint32_t process, uint64_t address, uint64_t length) {
  const Faults& set = faults();
  if (set.miss_ns == 0 || set.cached_pages == 0)
    return;
  static std::vector<std::atomic<uint64_t>> cache(set.cached_pages);
  uint64_t misses = 0;
  for (uint64_t page = address >> 12; page <= (address + length - 1) >> 12; ++page) {
    const uint64_t tag = (page << 7 | process) + 1;
    std::atomic<uint64_t>& entry = cache[(page * 0x9e3779b97f4a7c15u >> 20) % set.cached_pages];
    if (entry.exchange(tag, std::memory_order_relaxed) != tag)
      ++misses;
  }
  const uint64_t until = now_ns() + misses * set.miss_ns;
  while (misses != 0 && now_ns() < until) {
  }
}

} // namespace adverb::loopback
