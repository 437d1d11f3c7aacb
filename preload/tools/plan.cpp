// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// adverb plan: how long a message would take over a link, by scheme of reliability.
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "policy/format.h"
#include "policy/suggest.h"
#include "tools/commands.h"
#include "tools/plan_policy.h"
#include "tools/plan_svg.h"
#include "tools/plan_text.h"
#include "tools/quantity.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <getopt.h>
#include <optional>

#include <fmt/format.h>

namespace adverb::tools {
namespace {

using namespace reliability;

constexpr const char* usage =
    "usage: adverb plan --rtt TIME --bandwidth BANDWIDTH --loss CHANCE --size SIZE [OPTION]...\n"
    "Says how long one message would take over an idle link that loses packets, by scheme of\n"
    "reliability, and which scheme the library would choose. The times are lower bounds, by a\n"
    "model; adverb(1) says what it leaves out. Needs no device.\n\n"
    "      --rtt TIME             round trip: a number with ns, us, ms or s\n"
    "      --bandwidth BANDWIDTH  a number with Kbit, Mbit, Gbit, Tbit, KB, MB, GB or TB, with or\n"
    "                             without /s\n"
    "      --loss CHANCE          of a packet, from 0 to 0.9 or in percent: 1e-4, 0.01%\n"
    "      --size SIZE            of the message: a number with B, KiB, MiB, GiB or TiB\n"
    "      --chunk SIZE           what a code works on; a multiple of the MTU (64KiB)\n"
    "      --mtu BYTES            payload of a packet: 256, 512, 1024, 2048 or 4096 (4096)\n"
    "      --code CODE            mds:K,M or xor:K,M: K chunks with M of parity; once for each "
    "code\n"
    "                             (xor:32,8 and mds:32,8)\n"
    "      --sweep INPUT          the means for many values of loss, size or rtt; this one need "
    "not\n"
    "                             be given\n"
    "      --svg FILE             write a plot of the sweep (over loss, if none is given)\n"
    "      --simulate N           beside the model, so many simulated messages of each scheme, "
    "with\n"
    "                             95 % intervals (0: none)\n"
    "      --policy               the policy for such a link, and nothing else; needs no --size\n"
    "      --json                 every number, for machines\n"
    "  -h, --help                 this text\n\n"
    "Columns: slowdown, mean over the ideal time; sent, bytes on the wire over bytes of the\n"
    "message; fallback, the chance that parity is not enough and chunks are sent again.\n\n"
    "Exit status: 0; 1 if FILE cannot be written; 2 if adverb was called wrongly.\n";

struct Options {
  std::optional<double> rtt_ns;
  std::optional<double> bandwidth;
  std::optional<double> loss;
  std::optional<uint64_t> size;
  uint64_t chunk = 65536;
  uint64_t mtu = 4096;
  std::vector<Scheme> codes;
  std::optional<Sweep> sweep;
  std::string svg;
  uint64_t simulate = 0; // messages
  bool policy = false;
  bool json = false;
};

constexpr uint64_t most_bytes = uint64_t{1} << 50;
constexpr uint64_t most_simulated = 1'000'000;
constexpr uint64_t most_chunk = uint64_t{1} << 30;

// "mds:32,8"; nothing if it is no valid code.
std::optional<Scheme> parse_code(std::string_view text) {
  Scheme scheme;
  scheme.parity = text.starts_with("mds:") ? Parity::mds : Parity::xor_parity;
  if (!text.starts_with("mds:") && !text.starts_with("xor:"))
    return std::nullopt;
  const char* end = text.data() + text.size();
  const auto [comma, no_k] = std::from_chars(text.data() + 4, end, scheme.k);
  if (no_k != std::errc{} || comma == end || *comma != ',')
    return std::nullopt;
  const auto [stop, no_m] = std::from_chars(comma + 1, end, scheme.m);
  if (no_m != std::errc{} || stop != end || !scheme.valid())
    return std::nullopt;
  return scheme;
}

int refuse(std::string_view option, std::string_view value, std::string_view remedy) {
  fmt::print(stderr, "adverb plan: --{}: {} is not {}\n", option, policy::in_quotes(value), remedy);
  return status_usage;
}

// A number that is there and above 0.
template <typename Number> bool is_positive(const std::optional<Number>& number) {
  return number && *number > 0;
}

bool is_mtu(std::string_view text, uint64_t& mtu) {
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, mtu);
  return failure == std::errc{} && stop == end && mtu >= 256 && mtu <= 4096 &&
         (mtu & (mtu - 1)) == 0;
}

bool is_count(std::string_view text, uint64_t& count) {
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, count);
  return failure == std::errc{} && stop == end && count != 1 && count <= most_simulated;
}

// Options without a letter of their own.
namespace letter {
enum : int {
  rtt = 256,
  bandwidth,
  loss,
  size,
  chunk,
  mtu,
  code,
  sweep,
  svg,
  simulate,
  policy,
  json
};
}

constexpr option known[] = {
    {"rtt", required_argument, nullptr, letter::rtt},
    {"bandwidth", required_argument, nullptr, letter::bandwidth},
    {"loss", required_argument, nullptr, letter::loss},
    {"size", required_argument, nullptr, letter::size},
    {"chunk", required_argument, nullptr, letter::chunk},
    {"mtu", required_argument, nullptr, letter::mtu},
    {"code", required_argument, nullptr, letter::code},
    {"sweep", required_argument, nullptr, letter::sweep},
    {"svg", required_argument, nullptr, letter::svg},
    {"simulate", required_argument, nullptr, letter::simulate},
    {"policy", no_argument, nullptr, letter::policy},
    {"json", no_argument, nullptr, letter::json},
    {"help", no_argument, nullptr, 'h'},
    {nullptr, 0, nullptr, 0},
};

// Takes one option's value; nothing: go on, otherwise the exit status.
std::optional<int> take(int which, std::string_view value, Options& options) {
  switch (which) {
  case letter::rtt:
    options.rtt_ns = parse_time_ns(value);
    if (!is_positive(options.rtt_ns) || *options.rtt_ns < 1 || *options.rtt_ns > 1e12)
      return refuse(
          "rtt", value,
          fmt::format("a round trip from 1ns to 1000s; write a number with {}, such as 25ms",
                      time_units));
    break;
  case letter::bandwidth:
    options.bandwidth = parse_bandwidth(value);
    if (!is_positive(options.bandwidth) || *options.bandwidth < 1 || *options.bandwidth > 1e15)
      return refuse(
          "bandwidth", value,
          fmt::format("a bandwidth from 1 byte a second to 1PB/s; write a number with {}, such as "
                      "400Gbit",
                      bandwidth_units));
    break;
  case letter::loss:
    options.loss = parse_chance(value);
    if (!options.loss || *options.loss > most_loss)
      return refuse("loss", value,
                    fmt::format("a packet's chance of loss from 0 to {}; write it such as 1e-4 or "
                                "0.01%",
                                most_loss));
    break;
  case letter::size:
    options.size = policy::parse_size(value);
    if (!is_positive(options.size) || *options.size > most_bytes)
      return refuse("size", value,
                    "a size from 1B to 1024TiB; write a whole number with B, KiB, MiB, GiB or TiB, "
                    "such as 128MiB");
    break;
  case letter::chunk:
    options.chunk = policy::parse_size(value).value_or(0);
    if (options.chunk == 0 || options.chunk > most_chunk)
      return refuse("chunk", value,
                    "a size from 1B to 1GiB; write a whole number with B, KiB, MiB or GiB, such as "
                    "64KiB");
    break;
  case letter::mtu:
    if (!is_mtu(value, options.mtu))
      return refuse("mtu", value, "an MTU; write 256, 512, 1024, 2048 or 4096");
    break;
  case letter::code:
    if (const auto scheme = parse_code(value))
      options.codes.push_back(*scheme);
    else
      return refuse("code", value,
                    "a code; write mds:K,M or xor:K,M with K and M from 1 on, K + M up to 255, and "
                    "for xor M up to K, such as mds:32,8");
    break;
  case letter::sweep:
    options.sweep = parse_sweep(value);
    if (!options.sweep)
      return refuse("sweep", value, "an input to sweep; write loss, size or rtt");
    break;
  case letter::svg:
    options.svg = value;
    break;
  case letter::simulate:
    if (!is_count(value, options.simulate))
      return refuse("simulate", value,
                    fmt::format("a number of messages; write 0, or 2 to {}", most_simulated));
    break;
  case letter::policy:
    options.policy = true;
    break;
  case letter::json:
    options.json = true;
    break;
  default:
    fputs(usage, stdout);
    return status_ok;
  }
  return std::nullopt;
}

int refuse_option(std::string_view word) {
  const std::string_view bare = word.substr(0, word.find('='));
  std::vector<std::string> spelt;
  for (const option& each : known)
    if (each.name != nullptr)
      spelt.push_back(std::string("--") + each.name);
  const std::vector<std::string_view> names(spelt.begin(), spelt.end());
  fmt::print(stderr, "adverb plan: unknown option {}; {}\n", policy::in_quotes(bare),
             policy::did_you_mean(bare, names, "the options are"));
  return status_usage;
}

std::optional<int> parse(int argc, char** argv, Options& options) {
  opterr = 0;
  optind = 1;
  for (;;) {
    const int at = optind;
    const int which = getopt_long(argc, argv, ":h", known, nullptr);
    if (which == -1)
      break;
    if (which == ':') {
      fmt::print(stderr, "adverb plan: {} needs a value; see adverb plan --help\n", argv[at]);
      return status_usage;
    }
    if (which == '?')
      return refuse_option(argv[at]);
    if (const auto status = take(which, optarg == nullptr ? "" : optarg, options))
      return status;
  }
  if (optind < argc) {
    fmt::print(stderr, "adverb plan: {} is not an option; give values as in --rtt 25ms\n",
               policy::in_quotes(argv[optind]));
    return status_usage;
  }
  return std::nullopt;
}

// What is missing or does not fit together.
std::optional<int> check(const Options& options) {
  struct Input {
    const char* text;
    bool given;
  };
  const Input inputs[] = {
      {"--rtt, such as 25ms", options.rtt_ns || options.sweep == Sweep::rtt},
      {"--bandwidth, such as 400Gbit", options.bandwidth.has_value()},
      {"--loss, such as 1e-4", options.loss || options.sweep == Sweep::loss},
      {"--size, such as 128MiB", options.size || options.sweep == Sweep::size || options.policy},
  };
  for (const Input& input : inputs)
    if (!input.given) {
      fmt::print(stderr, "adverb plan: {}, is missing\n", input.text);
      return status_usage;
    }
  if (options.policy &&
      (options.sweep || options.json || !options.svg.empty() || options.simulate != 0)) {
    fmt::print(stderr, "adverb plan: --policy prints a policy alone; leave out --sweep, --svg, "
                       "--simulate and --json\n");
    return status_usage;
  }
  if (options.chunk % options.mtu != 0) {
    fmt::print(stderr,
               "adverb plan: --chunk: {} is not a multiple of the MTU of {} bytes; give another "
               "--chunk or --mtu\n",
               policy::in_quotes(policy::size_text(options.chunk)), options.mtu);
    return status_usage;
  }
  return std::nullopt;
}

bool write_file(const std::string& path, const std::string& text) {
  FILE* file = fopen(path.c_str(), "we");
  bool written = file != nullptr && fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file != nullptr && fclose(file) != 0)
    written = false;
  if (!written)
    fmt::print(stderr, "adverb plan: --svg: cannot write {}: {}\n", policy::in_quotes(path),
               strerror(errno));
  return written;
}

// Whether all of it is small enough for the simulation.
bool is_simulable(std::span<const PlanRow> rows, const Transfer& transfer,
                  std::span<const SweepPoint> points, std::span<const Scheme> codes) {
  const auto fits = [](const Transfer& each, const Scheme& scheme) {
    if (can_simulate(each, scheme))
      return true;
    fmt::print(stderr,
               "adverb plan: --simulate: a message of {} in packets of {} bytes is too much to "
               "simulate for {}; give a smaller --size, a larger --mtu or no --simulate\n",
               policy::size_text(each.message_bytes), each.packet_bytes, scheme_name(scheme));
    return false;
  };
  for (const PlanRow& row : rows)
    if (row.scheme && !fits(transfer, *row.scheme))
      return false;
  const std::vector<Scheme> schemes = sweep_schemes(codes);
  return std::ranges::all_of(points, [&](const SweepPoint& point) {
    return std::ranges::all_of(schemes,
                               [&](const Scheme& scheme) { return fits(point.transfer, scheme); });
  });
}

} // namespace

int cmd_plan(int argc, char** argv) {
  Options options;
  if (const auto status = parse(argc, argv, options))
    return *status;
  if (const auto status = check(options))
    return *status;
  const Transfer transfer{.message_bytes = options.size.value_or(0),
                          .chunk_bytes = static_cast<uint32_t>(options.chunk),
                          .packet_bytes = static_cast<uint32_t>(options.mtu),
                          .bytes_per_second = *options.bandwidth,
                          .rtt_ns = options.rtt_ns.value_or(0),
                          .packet_loss = options.loss.value_or(0)};
  if (options.policy) {
    fmt::print("{}\n", policy_of(transfer));
    return status_ok;
  }
  const std::span<const Scheme> codes =
      options.codes.empty() ? default_codes() : std::span<const Scheme>(options.codes);
  const bool whole = options.rtt_ns && options.loss && options.size;
  const bool sweeps = options.sweep || !options.svg.empty();
  const Sweep sweep = options.sweep.value_or(Sweep::loss);
  const std::vector<std::string> names = sweep_names(codes);
  std::vector<PlanRow> rows;
  if (whole)
    rows = plan_rows(transfer, codes);
  std::vector<SweepPoint> points;
  if (sweeps)
    points = sweep_points(sweep, transfer, codes);
  if (options.simulate != 0) {
    if (!is_simulable(rows, transfer, points, codes))
      return status_usage;
    simulate_rows(transfer, options.simulate, rows);
    simulate_points(codes, options.simulate, points);
  }
  if (!options.svg.empty() && !write_file(options.svg, sweep_svg(sweep, transfer, names, points)))
    return status_failed;

  if (options.json) {
    nlohmann::json out = {{"chunk_bytes", options.chunk},
                          {"packet_bytes", options.mtu},
                          {"bytes_per_second", transfer.bytes_per_second}};
    if (whole)
      out.update(rows_json(transfer, rows, options.simulate));
    if (options.sweep)
      out["sweep"] = sweep_json(names, points);
    fmt::print("{}\n", out.dump(2));
    return status_ok;
  }
  if (whole)
    print_rows(transfer, rows, options.simulate);
  if (options.sweep) {
    if (whole)
      fmt::print("\n");
    print_sweep(sweep, transfer, names, points);
    if (options.simulate != 0)
      print_simulated(names, points, options.simulate);
  }
  return status_ok;
}

} // namespace adverb::tools
