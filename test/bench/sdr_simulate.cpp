// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Simulated messages of 128 MiB over a long fast link that loses packets, by scheme. Each scheme's
// line is printed as soon as it is known:
//
//   bench_sdr_simulate LOSS MESSAGES CODED    MESSAGES of each scheme without parity, CODED of each
//                                             with parity
//   NAME|messages|mean|low|high|p99|low|high|p99.9|low|high|model's mean, p99, p99.9|sent|of auto
//
// Times are milliseconds; "-" is an end or a figure that is not known. The seeds are fixed.
#include "reliability/choose.h"
#include "tools/plan_simulation.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using namespace adverb::reliability;
using adverb::tools::Sampled;
using adverb::tools::simulate;
using adverb::tools::SimulatedFigures;

constexpr double ms = 1e6;

struct Entry {
  const char* name;
  Scheme scheme;
  bool whole = false; // a packet lost is a chunk lost: the chunk is the packet
};

constexpr Entry entries[] = {
    {"SR RTO chunk=packet", {.detection = Detection::timeout, .unit = Unit::packet}, true},
    {"SR RTO chunk", {.detection = Detection::timeout, .unit = Unit::chunk}},
    {"SR RTO packet", {.detection = Detection::timeout, .unit = Unit::packet}},
    {"SR NACK chunk", {.detection = Detection::nack, .unit = Unit::chunk}},
    {"SR NACK packet", {.detection = Detection::nack, .unit = Unit::packet}},
    {"XOR(32,8)", {.parity = Parity::xor_parity, .k = 32, .m = 8}},
    {"EC(32,8) MDS", {.parity = Parity::mds, .k = 32, .m = 8}},
    {"EC(32,12) MDS", {.parity = Parity::mds, .k = 32, .m = 12}},
};

Transfer transfer_of(double loss) {
  Transfer transfer;
  transfer.message_bytes = uint64_t{128} << 20;
  transfer.chunk_bytes = 64 * 1024;
  transfer.packet_bytes = 4096;
  transfer.bytes_per_second = 400e9 / 8;
  transfer.rtt_ns = 25 * ms;
  transfer.packet_loss = loss;
  return transfer;
}

void print(const char* name, uint64_t messages, const SimulatedFigures& s, const Estimate& model,
           const std::string& of_auto) {
  printf("%s|%lu", name, messages);
  for (const Sampled& each : {s.mean_ns, s.p99_ns, s.p999_ns}) {
    printf("|%.6f|%.6f|", each.value / ms, each.low / ms);
    if (each.high)
      printf("%.6f", *each.high / ms);
    else
      printf("-");
  }
  printf("|%.6f|%.6f|%.6f|%.6f|%s\n", model.mean_ns / ms, model.p99_ns / ms, model.p999_ns / ms,
         s.sent, of_auto.c_str());
  fflush(stdout);
}

std::string text_of(const Scheme& scheme) {
  if (!scheme.has_parity())
    return scheme.detection == Detection::nack ? "SR NACK packet" : "SR RTO packet";
  return std::string(scheme.parity == Parity::mds ? "EC(" : "XOR(") + std::to_string(scheme.k) +
         "," + std::to_string(scheme.m) + ")" + (scheme.parity == Parity::mds ? " MDS" : "");
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: bench_sdr_simulate LOSS MESSAGES CODED\n");
    return 2;
  }
  const Transfer transfer = transfer_of(atof(argv[1]));
  const uint64_t plain = strtoull(argv[2], nullptr, 10);
  const uint64_t coded = strtoull(argv[3], nullptr, 10);
  const Scheme chosen = choose_scheme(transfer).scheme;
  const auto go = [&](const char* name, const Transfer& over, const Scheme& scheme, uint64_t seed,
                      const std::string& of_auto) {
    const uint64_t messages = scheme.has_parity() ? coded : plain;
    const auto figures = simulate(
        over, scheme, {.messages = messages, .seed = seed, .report_loss = transfer.packet_loss});
    if (!figures) {
      fprintf(stderr, "bench: a message of %s was given up\n", name);
      exit(1);
    }
    print(name, messages, *figures, estimate(over, scheme), of_auto);
  };
  // A formula alone, without a distribution.
  const GoBackN whole_window = go_back_n(transfer);
  printf("GBN (model)|0|%.6f|-|-|-|-|-|-|-|-|%.6f|-|-|%.6f|\n", whole_window.mean_ns / ms,
         whole_window.mean_ns / ms, whole_window.sent);
  uint64_t seed = 0;
  for (const Entry& entry : entries) {
    Transfer over = transfer;
    if (entry.whole) {
      over.packet_bytes = over.chunk_bytes;
      over.packet_loss = chunk_loss(transfer);
    }
    go(entry.name, over, entry.scheme, ++seed, "");
  }
  // Messages of its own, though the scheme may be one of the above.
  go("auto", transfer, chosen, ++seed, text_of(chosen));
  return 0;
}
