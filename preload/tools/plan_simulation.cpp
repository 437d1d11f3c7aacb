// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "tools/plan_simulation.h"

#include "reliability/simulation.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <numeric>
#include <sched.h>

namespace adverb::tools {
namespace {

using namespace reliability;

constexpr uint64_t batch_messages = 16;   // with one seed, in one thread
constexpr double beyond_interval = 0.025; // on either side of 95 %
constexpr double normal_95 = 1.959964;
constexpr double p99 = 0.99, p999 = 0.999;

constexpr double most_packets = 0x1p27;
constexpr double longest_ns = 30.0 * 24 * 3600 * 1e9;

// Seeds of neighbours have nothing in common (Steele et al., OOPSLA 2014: SplitMix64).
uint64_t seed_of(uint64_t seed, uint64_t batch) noexcept {
  uint64_t mixed = seed * 0xD1342543DE82EF95 + (batch + 1) * 0x9E3779B97F4A7C15;
  mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB;
  return mixed ^ mixed >> 31;
}

Layout layout_of(const Transfer& transfer) noexcept {
  return {{transfer.chunk_bytes, transfer.packet_bytes}, transfer.message_bytes};
}

unsigned processors() noexcept {
  cpu_set_t may_use;
  return sched_getaffinity(0, sizeof may_use, &may_use) == 0 ? std::max(1, CPU_COUNT(&may_use)) : 1;
}

// Ranks, from 0, of the order statistics around a quantile: each lies beyond it with a chance of
// 2.5 % at most. The number of messages below the quantile is binomial.
struct Ranks {
  uint64_t low = 0;
  uint64_t high = 0; // the number of messages: none is so high
};

Ranks ranks_of(uint64_t messages, double quantile) {
  const auto n = static_cast<double>(messages);
  const double middle = n * quantile;
  const double spread = 10 * std::sqrt(middle * (1 - quantile)) + 10; // beyond it chances are 0
  const auto first = static_cast<uint64_t>(std::max(0.0, middle - spread));
  const auto last = std::min(messages, static_cast<uint64_t>(middle + spread));
  Ranks ranks{0, messages};
  double below = 0; // P(at most so many)
  for (uint64_t i = first; i <= last; ++i) {
    const auto k = static_cast<double>(i);
    below += std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) +
                      k * std::log(quantile) + (n - k) * std::log1p(-quantile));
    if (below <= beyond_interval)
      ranks.low = i; // it is above the quantile if at most i messages are below that
    if (below >= 1 - beyond_interval) {
      ranks.high = i; // it is below the quantile if more are
      break;
    }
  }
  return ranks;
}

Sampled quantile_of(const std::vector<double>& sorted, double quantile) {
  const auto rank = static_cast<uint64_t>(std::ceil(static_cast<double>(sorted.size()) * quantile));
  const Ranks ranks = ranks_of(sorted.size(), quantile);
  Sampled out{sorted[std::max<uint64_t>(rank, 1) - 1], sorted[ranks.low], {}};
  if (ranks.high < sorted.size())
    out.high = sorted[ranks.high];
  return out;
}

struct Batch {
  std::vector<double> times;
  uint64_t packets = 0;
};

// Nothing if a message was given up.
std::optional<Batch> run_batch(const SimulatedLink& link, const Transfer& transfer,
                               const Scheme& scheme, uint64_t seed, uint64_t messages) {
  Simulation simulation(link, seed);
  Batch batch;
  for (uint64_t i = 0; i < messages; ++i) {
    const auto message = simulation.send(layout_of(transfer), scheme, transfer.alpha);
    if (!message)
      return std::nullopt;
    batch.times.push_back(static_cast<double>(message->took.count()));
    batch.packets += message->packets;
  }
  return batch;
}

} // namespace

bool can_simulate(const Transfer& transfer, const Scheme& scheme) {
  const double chunks = layout_of(transfer).chunks();
  const double columns = layout_of(transfer).columns();
  const double shards =
      scheme.has_parity() ? (chunks / scheme.k + 1) * (scheme.k + scheme.m) : chunks;
  return shards * columns <= most_packets && ideal_ns(transfer) <= longest_ns &&
         Layout::fits(layout_of(transfer).cut, transfer.message_bytes);
}

SimulatedFigures figures_of(std::vector<double>& times) {
  std::sort(times.begin(), times.end());
  const auto n = static_cast<double>(times.size());
  const double mean = std::accumulate(times.begin(), times.end(), 0.0) / n;
  double squares = 0;
  for (const double time : times)
    squares += (time - mean) * (time - mean);
  SimulatedFigures out;
  out.messages = times.size();
  const double margin = normal_95 * std::sqrt(squares / (n - 1) / n);
  out.mean_ns = {mean, mean - margin, mean + margin};
  out.p99_ns = quantile_of(times, p99);
  out.p999_ns = quantile_of(times, p999);
  return out;
}

std::optional<SimulatedFigures> simulate(const Transfer& transfer, const Scheme& scheme,
                                         const Campaign& campaign) {
  const SimulatedLink link{transfer.bytes_per_second, Time(static_cast<int64_t>(transfer.rtt_ns)),
                           std::min(transfer.packet_loss, most_loss), campaign.report_loss};
  const uint64_t batches = (campaign.messages + batch_messages - 1) / batch_messages;
  std::vector<std::optional<Batch>> done(batches);
  std::atomic<uint64_t> next{0};
  std::atomic<bool> gave_up{false};
  const auto work = [&] {
    for (uint64_t i = next++; i < batches && !gave_up; i = next++) {
      done[i] = run_batch(link, transfer, scheme, seed_of(campaign.seed, i),
                          std::min(batch_messages, campaign.messages - i * batch_messages));
      if (!done[i])
        gave_up = true;
    }
  };
  std::vector<std::future<void>> workers;
  for (uint64_t i = 1; i < std::min<uint64_t>(processors(), batches); ++i)
    workers.push_back(std::async(std::launch::async, work));
  work();
  for (auto& worker : workers)
    worker.get();
  if (gave_up)
    return std::nullopt;
  std::vector<double> times;
  uint64_t packets = 0;
  for (const auto& batch : done) {
    times.insert(times.end(), batch->times.begin(), batch->times.end());
    packets += batch->packets;
  }
  SimulatedFigures out = figures_of(times);
  out.sent = static_cast<double>(packets) /
             (static_cast<double>(campaign.messages) * layout_of(transfer).packets());
  return out;
}

} // namespace adverb::tools
