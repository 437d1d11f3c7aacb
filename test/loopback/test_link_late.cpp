// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Packets that arrive when their receiver has moved on, receives that are missing, and settings
// that are wrong. The device hands out the number freed last, again at once (meson.build).
#include "test_link_ends.h"

namespace {

using Clock = std::chrono::steady_clock;

// The time by which `kLate` makes a packet late.
constexpr auto kLateBy = std::chrono::milliseconds(400);
constexpr const char* kLate = "late=1:400ms";

// Sends a packet that is late, changes the receiver while the packet is on its way, and returns
// the packet's arrival. If this thread was kept from the change for so long that the packet may
// have come before it, the case has not been tried, and another packet is sent.
template <typename Change> Line::Arrival meet_late_packet(Line& line, Change change) {
  for (uint32_t number = 1;; ++number) {
    const auto begin = Clock::now();
    line.send(number);
    change();
    line.post_receives(4);
    if (Clock::now() - begin >= kLateBy)
      continue;
    Line::Arrival each = line.arrival();
    while (each.number < number) // of a case that was not tried
      each = line.arrival();
    return each;
  }
}

void reset_and_connect(Line& line) {
  REQUIRE(line.receiver.move(IBV_QPS_RESET) == 0);
  line.receiver.connect(line.sender.address());
}

// Whether a late WRITE changes a byte behind a fence. If the packet may
// have come before the fence, the case has not been tried, and is tried anew.
template <typename Fence> bool lands_behind(Fence fence) {
  for (;;) {
    const auto begin = Clock::now();
    Line line(Kind::uc_write, kLate);
    Line marker(Kind::ud_send, kLate);
    line.post_receives(4);
    marker.post_receives(4);
    memset(line.receiver.buffer.data(), 'x', line.receiver.buffer.size());
    const std::vector<char> before = line.receiver.buffer;
    line.send(1);
    fence(line.receiver);
    const bool in_time = Clock::now() - begin < kLateBy;
    // The wire delivers in order of time: when the marker is there, the packet has been.
    marker.send(1);
    CHECK(marker.arrival().number == 1);
    if (!in_time)
      continue;
    const bool changed = line.receiver.buffer != before;
    CHECK(line.receiver.quiet() == !changed);
    return changed;
  }
}

} // namespace

TEST_CASE("a late packet arrives after RESET and RTR of its receiver") {
  for (const Kind kind : {Kind::uc_send, Kind::uc_write, Kind::ud_send}) {
    Line line(kind, kLate);
    CHECK(meet_late_packet(line, [&] { reset_and_connect(line); }).whole);
  }
}

TEST_CASE("a late packet reaches the next queue pair of its number, whoever that one's peer is") {
  for (const Kind kind : {Kind::uc_send, Kind::ud_send}) {
    Line line(kind, kLate);
    End stranger({.type = line.sender.options.type});
    const Line::Arrival each = meet_late_packet(line, [&] {
      const uint32_t number = line.receiver.qp->qp_num;
      REQUIRE(ibv_destroy_qp(line.receiver.qp) == 0);
      line.receiver.make_qp();
      REQUIRE(line.receiver.qp->qp_num == number);
      line.receiver.connect(stranger.address());
    });
    CHECK(each.whole);
  }
}

TEST_CASE("a late WRITE lands in the next region of its key") {
  Line line(Kind::uc_write, kLate);
  const Line::Arrival each = meet_late_packet(line, [&] {
    const uint32_t key = line.receiver.mr->rkey;
    REQUIRE(ibv_dereg_mr(line.receiver.mr) == 0);
    line.receiver.mr = ibv_reg_mr(line.receiver.pd, line.receiver.buffer.data(),
                                  line.receiver.buffer.size(), line.receiver.options.region_access);
    REQUIRE(line.receiver.mr->rkey == key);
  });
  CHECK(each.whole);
}

TEST_CASE("a late packet outlives the queue pair and the region of its sender") {
  Line line(Kind::uc_send, kLate);
  const Line::Arrival each = meet_late_packet(line, [&] {
    End& sender = line.sender;
    REQUIRE(ibv_destroy_qp(sender.qp) == 0);
    REQUIRE(ibv_dereg_mr(sender.mr) == 0);
    sender.mr = ibv_reg_mr(sender.pd, sender.buffer.data(), sender.buffer.size(), 0);
    sender.make_qp();
    sender.connect(line.receiver.address());
  });
  CHECK(each.whole);
}

TEST_CASE("a late packet meets a dead key or a queue pair in RESET, and nothing happens") {
  const auto kill_key = [](End& receiver) {
    REQUIRE(ibv_dereg_mr(receiver.mr) == 0);
    receiver.mr = nullptr;
  };
  const auto reset = [](End& receiver) { REQUIRE(receiver.move(IBV_QPS_RESET) == 0); };
  CHECK_FALSE(lands_behind(kill_key));
  CHECK_FALSE(lands_behind(reset));
  CHECK(lands_behind([](End&) {}));
}

TEST_CASE("a WRITE_WITH_IMM without a receive is dropped unseen, or places its payload") {
  for (const std::string setting : {"seed=1", "unbacked=drop", "unbacked=place"}) {
    Line line(Kind::uc_write, setting);
    line.send(9);
    CHECK(line.receiver.quiet());
    uint32_t word = 0;
    memcpy(&word, line.receiver.buffer.data() + Line::written(9), sizeof(word));
    CHECK(word == (setting == "unbacked=place" ? 9 : 0));
    line.post_receives(4); // none of them is for the packet that came before
    CHECK(line.receiver.quiet());
    line.send(10);
    CHECK(line.arrival().number == 10);
  }
}

TEST_CASE("a SEND without a receive is dropped on UC and UD") {
  for (const Kind kind : {Kind::uc_send, Kind::ud_send})
    for (const std::string setting : {"unbacked=drop", "unbacked=place"}) {
      Line line(kind, setting);
      line.send(1);
      line.post_receives(4);
      CHECK(line.receiver.quiet());
      line.send(2);
      CHECK(line.arrival().number == 2);
      CHECK(line.receiver.quiet());
    }
}

TEST_CASE("the PSN of UC is no filter") {
  Line line(Kind::uc_send, "seed=1");
  REQUIRE(line.receiver.move(IBV_QPS_RESET) == 0);
  Address other = line.sender.address();
  other.psn = (other.psn + 12345) & 0xffffff;
  line.receiver.connect(other);
  line.post_receives(4);
  line.send(1);
  CHECK(line.arrival().number == 1);
}

TEST_CASE("a setting that is wrong names its word and opens no device") {
  for (const std::string good :
       {"seed=7,loss=1e-2,burst=4,duplicate=1e-3,reorder=1e-2:8,late=1e-3:50ms,delay=5ms",
        "reorder=1:1:2s,unbacked=place", "loss=1", "delay=0ns", ""})
    CHECK(complaint_of(kLink, good) == "opened");
  for (const std::string bad :
       {"los=1e-2",    "loss",           "loss=",         "loss=2",          "loss=-1",
        "loss=nan",    "loss=1x",        "seed=-1",       "seed=1.5",        "burst=0.5",
        "reorder=0.1", "reorder=0.1:0",  "reorder=0.1:x", "reorder=0.1:3:2", "late=0.1",
        "late=0.1:50", "late=0.1:50min", "late=2:50ms",   "delay=ms",        "unbacked=keep"})
    for (const std::string& text : {bad, "seed=1," + bad, bad + ",seed=1"}) {
      const std::string said = complaint_of(kLink, text);
      CHECK(said.find("ADVERB_LOOPBACK_LINK: '" + bad + "': ") != std::string::npos);
    }
  CHECK(complaint_of(kLink, "seed=1,").find("'': ") != std::string::npos);
  CHECK(complaint_of(kLink, "loss=0.9,burst=1").find("'burst'") != std::string::npos);
}
