// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a bad link does to the packets of UC and UD: loss, duplicates, order, delay.
#include "test_link_ends.h"

#include <algorithm>
#include <cmath>

namespace {

constexpr uint32_t kPackets = 20000;
constexpr double kSigmas = 5;
constexpr std::array<Kind, 3> kKinds = {Kind::uc_send, Kind::uc_write, Kind::ud_send};

using Arrivals = std::vector<Line::Arrival>;

// How often each packet arrived. Fails unless every payload is whole.
std::vector<uint32_t> count(const Arrivals& arrivals) {
  std::vector<uint32_t> times(kPackets);
  bool whole = true;
  for (const Line::Arrival& each : arrivals) {
    ++times.at(each.number);
    whole = whole && each.whole;
  }
  CHECK(whole);
  return times;
}

bool ordered(const Arrivals& arrivals) {
  return std::is_sorted(arrivals.begin(), arrivals.end(),
                        [](const auto& a, const auto& b) { return a.number < b.number; });
}

std::vector<uint32_t> times_arrived(Kind kind, const std::string& setting) {
  Line line(kind, setting);
  return count(line.run(kPackets));
}

// Whether `hits` of `kPackets` independent trials agree with a probability.
bool plausible(ptrdiff_t hits, double probability) {
  const double mean = kPackets * probability;
  return std::abs(static_cast<double>(hits) - mean) <=
         kSigmas * std::sqrt(mean * (1 - probability));
}

ptrdiff_t arrived(const std::vector<uint32_t>& times, uint32_t often) {
  return std::count(times.begin(), times.end(), often);
}

} // namespace

TEST_CASE("a good link loses nothing and keeps the order") {
  for (const Kind kind : kKinds)
    for (const std::string setting : {"", "seed=3", "loss=0,burst=4,duplicate=0,reorder=0:1"}) {
      Line line(kind, setting);
      const Arrivals arrivals = line.run(kPackets);
      CHECK(arrivals.size() == kPackets);
      CHECK(ordered(arrivals));
      CHECK(arrived(count(arrivals), 1) == kPackets);
    }
}

TEST_CASE("the seed says which packets are lost, and the sender does not notice") {
  const auto first = times_arrived(Kind::uc_send, "seed=7,loss=1e-2");
  CHECK(plausible(arrived(first, 0), 1e-2));
  CHECK(arrived(first, 0) + arrived(first, 1) == kPackets);
  // The kind of the packets has no say.
  for (const Kind kind : kKinds) {
    CHECK((times_arrived(kind, "seed=7,loss=1e-2") == first));
    const auto other = times_arrived(kind, "seed=8,loss=1e-2");
    CHECK(plausible(arrived(other, 0), 1e-2));
    CHECK((other != first));
  }
}

TEST_CASE("two queue pairs of one device lose different packets") {
  Line line(Kind::uc_send, "loss=0.1");
  const auto first = count(line.run(kPackets));
  REQUIRE(ibv_destroy_qp(line.sender.qp) == 0);
  line.sender.make_qp();
  for (End* end : {&line.sender, &line.receiver})
    REQUIRE(end->move(IBV_QPS_RESET) == 0);
  line.sender.connect(line.receiver.address());
  line.receiver.connect(line.sender.address());
  const auto second = count(line.run(kPackets));
  CHECK(plausible(arrived(second, 0), 0.1));
  CHECK((second != first));
}

TEST_CASE("bursts have the mean length that is set, and the loss too") {
  constexpr double kLoss = 0.05, kBurst = 4;
  const auto times = times_arrived(Kind::ud_send, "seed=2,loss=0.05,burst=4");
  const auto lost = static_cast<double>(arrived(times, 0));
  double bursts = 0;
  for (uint32_t i = 0; i < kPackets; ++i)
    bursts += times[i] == 0 && (i == 0 || times[i - 1] != 0) ? 1 : 0;
  // Lengths are geometric: their variance is B (B - 1).
  CHECK(std::abs(lost / bursts - kBurst) <= kSigmas * std::sqrt(kBurst * (kBurst - 1) / bursts));
  // The variance of the count grows by (1 + c) / (1 - c), where c is the correlation of
  // neighbours: 1 - 1/B - the probability that a burst begins.
  const double correlation = 1 - 1 / kBurst - kLoss / (1 - kLoss) / kBurst;
  const double variance = kPackets * kLoss * (1 - kLoss) * (1 + correlation) / (1 - correlation);
  CHECK(std::abs(lost - kPackets * kLoss) <= kSigmas * std::sqrt(variance));
}

TEST_CASE("a duplicate arrives with the same bytes, and nothing is lost") {
  for (const Kind kind : kKinds) {
    Line line(kind, "duplicate=1e-2");
    const Arrivals arrivals = line.run(kPackets);
    const auto times = count(arrivals);
    CHECK(ordered(arrivals));
    CHECK(plausible(arrived(times, 2), 1e-2));
    CHECK(arrived(times, 1) + arrived(times, 2) == kPackets);
  }
}

TEST_CASE("a held packet arrives behind exactly those that may overtake it") {
  constexpr uint32_t kSpan = 3;
  for (const Kind kind : kKinds) {
    // No packet is released by time alone while the test can be expected to run.
    Line line(kind, "reorder=1e-2:3:600s");
    Arrivals arrivals = line.run(kPackets);
    const auto times = count(arrivals);
    const ptrdiff_t missing = arrived(times, 0);
    CHECK(arrived(times, 1) + missing == kPackets);
    CHECK(std::all_of(times.begin(), times.end() - kSpan, [](uint32_t n) { return n == 1; }));
    std::vector<bool> held(kPackets + kSpan, true);
    for (uint32_t highest = 0; const Line::Arrival& each : arrivals) {
      highest = std::max(highest, each.number);
      held[each.number] = each.number != highest;
    }
    bool by_span = true;
    for (uint32_t highest = 0; const Line::Arrival& each : arrivals) {
      highest = std::max(highest, each.number);
      if (!held[each.number])
        continue;
      by_span = by_span && highest <= each.number + kSpan;
      for (uint32_t other = highest + 1; other <= each.number + kSpan; ++other)
        by_span = by_span && held[other]; // those that may overtake it and are held themselves
    }
    CHECK(by_span);
    CHECK(plausible(std::count(held.begin(), held.begin() + kPackets, true), 1e-2));
  }
}

TEST_CASE("all packets held are in order again, and the last one does not wait for ever") {
  for (const Kind kind : kKinds) {
    Line line(kind, "reorder=1:8");
    line.post_receives();
    for (uint32_t number = 0; number < 20; ++number)
      line.send(number);
    for (uint32_t number = 0; number < 20; ++number) {
      const Line::Arrival each = line.arrival();
      CHECK(each.number == number);
      CHECK(each.whole);
    }
  }
}

TEST_CASE("a delayed packet has the bytes and the order of its sending, and is not early") {
  for (const Kind kind : kKinds) {
    Line line(kind, "delay=20ms,duplicate=0.5");
    line.post_receives();
    const auto begin = std::chrono::steady_clock::now();
    for (uint32_t number = 0; number < 200; ++number)
      line.send(number);
    uint32_t next = 0;
    for (Line::Arrival each = line.arrival();; each = line.arrival()) {
      REQUIRE(each.whole);
      REQUIRE((each.number == next || each.number + 1 == next)); // itself, or its duplicate
      if (next == 0)
        CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(20));
      next = std::max(next, each.number + 1);
      if (next == 200)
        break;
    }
  }
}

TEST_CASE("UC loses a whole message with any of its packets") {
  constexpr uint32_t kParts = 8, kMessages = 1000, kMtu = 1024;
  const Setting setting(kLink, "loss=0.05");
  EndOptions options{.type = IBV_QPT_UC};
  Pair p(options, options);
  uint32_t arrived = 0;
  for (uint32_t i = 0; i < kMessages; ++i) {
    memset(p.a.buffer.data(), static_cast<int>(i % 100 + 1), size_t{kParts} * kMtu);
    memset(p.b.buffer.data(), 0, size_t{kParts} * kMtu);
    REQUIRE(p.b.receive(0, kParts * kMtu) == 0);
    REQUIRE(p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, kParts * kMtu) == 0);
    REQUIRE(p.a.completion().status == IBV_WC_SUCCESS);
    const bool came = !p.b.quiet();
    arrived += came ? 1 : 0;
    const char expected = came ? p.a.buffer[0] : '\0';
    REQUIRE(std::count(p.b.buffer.begin(), p.b.buffer.begin() + kParts * kMtu, expected) ==
            kParts * kMtu);
    if (!came) {
      REQUIRE(p.b.move(IBV_QPS_RESET) == 0); // takes the receive back
      p.b.connect(p.a.address());
    }
  }
  const double whole = std::pow(1 - 0.05, kParts);
  CHECK(std::abs(arrived - kMessages * whole) <=
        kSigmas * std::sqrt(kMessages * whole * (1 - whole)));
}

TEST_CASE("RC keeps its promises over the worst link") {
  const Setting setting(kLink, "loss=1,late=1:1s,delay=1s,unbacked=place");
  Pair p;
  for (uint32_t i = 0; i < 1000; ++i) {
    REQUIRE(p.b.receive(0, 64) == 0);
    REQUIRE(p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, 64) == 0);
    REQUIRE(p.a.completion().status == IBV_WC_SUCCESS);
    REQUIRE(p.b.completion().status == IBV_WC_SUCCESS);
  }
}
